"""Transitions from anywhere: one reader per format, one form on disk for training."""
