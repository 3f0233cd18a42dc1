"""Gradient coverage and transfer (`probes`), misfit, theory; the paper's experiments as values."""
