"""The paper's theory as programs: each claim can be run, and seen where it stops holding.

One file per claim: `linearity`, `ratio`, `certificates`, `separation` (with `sieves`) and
`exploration`. They share `mdp` and `waves` (MDPs known exactly), `fits` (minimisers of both
objectives), `bounds` (covering numbers and certificates), `lsvi`, `intervals` and `page`.
All is exact or NumPy in float64, except the ranking loss: JAX in float32. Axis names: `term`
(products of waves), `wave` (frequencies), `fit` (samples fitted in parallel), `run` (explorations).
"""
