"""The studies of `fastr theory`: each runs one of the paper's claims and reports on it."""
