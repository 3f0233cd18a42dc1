"""The paper's theory as programs: each claim can be run, and seen where it stops holding.

One file per study: `linearity`, `ratio`, `certificates`, `separation` and `exploration`. They share
`mdp` (MDPs known exactly), `fits` (minimisers of both objectives) and `page` (what is reported).
All is exact or NumPy in float64, except the ranking loss: JAX in float32. Axis names: `term`
(products of waves), `wave` (frequencies), `fit` (samples fitted in parallel), `run` (explorations).
"""
