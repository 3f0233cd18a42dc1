"""The paper's theory as programs: each claim can be run, seen to hold, and seen to stop holding."""
