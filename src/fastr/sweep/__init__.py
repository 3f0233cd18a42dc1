"""A grid of commands on Ray: on this machine, or on a cluster.

`cluster` connects to Ray and brings every unit to its end; `state` reads from disk how far each
unit is; `process` runs one command that ends with the process that started it. Nothing here loads
JAX.
"""
