"""The commands: each a dataclass whose fields are its options and whose `run` does the work."""
