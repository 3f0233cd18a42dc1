"""Spectral representations: how the feature of a state-action pair is learned."""
