"""A grid of commands on Ray: on this machine, or on a cluster.

`cluster` connects to Ray and brings every unit to its end; `state` reads from disk how far each
unit is. Nothing here loads JAX.
"""
