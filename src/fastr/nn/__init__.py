"""Layers, activations with their own gradients, the optimiser, precision, running statistics."""
