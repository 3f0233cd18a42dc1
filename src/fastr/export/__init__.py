"""Trained policies outside training: as files that run without fastr, and as films.

export gathers the facts and checks that a file acts as the policy does; program is the policy as a
list of steps, written as ONNX or safetensors; numpy_policy, shipped with the latter, runs it with
NumPy alone; card is the model card. play has greedy returns, films and the simulator's viewer.
"""
