"""Trained policies outside training: as files that run without fastr, and as films.

export gathers the facts, checks that a file acts as the policy does, and writes the model card;
program is the policy as a list of steps, written as ONNX or safetensors; numpy_policy, shipped with
the latter, runs it with NumPy alone. play has greedy returns, films and the simulator's viewer.
"""
