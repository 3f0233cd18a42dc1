"""Transfer, gradient coverage, misfit, theory; the paper's experiments as values."""
