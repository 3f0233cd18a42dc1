"""Trained policies outside training: as files that run without fastr, and as films.

export builds a file with its facts and checks that it acts as the policy does; program is the
policy as a list of steps, onnx writes them as ONNX, numpy_policy (the loader shipped with a
safetensors file) runs them with NumPy alone; card is the model card. play has greedy returns, films
and the simulator's viewer.
"""
