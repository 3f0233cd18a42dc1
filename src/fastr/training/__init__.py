"""Training: from a configuration to rows and checkpoints.

`config` has a run as one value and every method by name, `learner` the compiled programs, `replay`
the transitions on the device, `state` what is saved, `loop` the training itself, `evaluate` greedy
episodes, `trained` a finished run in Python. `cost` counts, `bench` measures, `progress` reports.
"""
