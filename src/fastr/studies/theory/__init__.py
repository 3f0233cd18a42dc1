"""The paper's theory as programs: each claim can be run, seen to hold, and seen to stop holding.

Everything is exact or NumPy in float64, but for the ranking loss, which JAX minimises in float32.
Axis names beside those of `fastr.transition`: `next` (next states of a table), `term` (products of
waves), `point` (places in a continuous space, or values along a curve), `member` (functions of a
class), `run` (explorations side by side), `fit` (samples fitted side by side).
"""
