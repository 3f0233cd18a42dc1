"""A grid of commands on this machine or on a Ray cluster; nothing here loads JAX."""
