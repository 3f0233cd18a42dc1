"""Agents: how a policy is learned from transitions.

`base` is the promise of an agent to the engine, evaluation and export. `spectral` is the paper's
actor-critic on any representation, `td3` its backbone alone, `sac` and `td7` are the baselines.
`actor_critic` has the critics, losses and deterministic actors that they share.
"""
