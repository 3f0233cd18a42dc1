"""Policies as files that run without fastr."""
