"""Training: configuration and presets, replay, learner, the loop, evaluation, what a run costs."""
