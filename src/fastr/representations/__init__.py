"""Spectral representations: how the feature of a state-action pair is learned.

`base` is the seam between a representation and the actor-critic on it. `scores` has the noise
schedule, the scores and the ranking loss, `ranking` the next-state factor that all contrastive
representations share. `interactions` (FaStR's CP form and its ablations), `joint` (CTRL-SR), `tree`
and `diffusion` (Diff-SR) are the representations.
"""
