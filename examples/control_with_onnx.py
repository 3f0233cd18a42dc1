"""Control a Gymnasium environment with an exported policy; needs neither fastr nor JAX.

pip install onnxruntime "gymnasium[mujoco]"
python control_with_onnx.py DIR/policy.onnx
"""

import sys

import gymnasium
import onnxruntime

policy = onnxruntime.InferenceSession(sys.argv[1])
facts = policy.get_modelmeta().custom_metadata_map
if "gymnasium_id" not in facts:
    sys.exit(f"{facts['task']} is not Gymnasium's: film_policies.py plays the suite's tasks.")
environment = gymnasium.make(facts["gymnasium_id"])
for seed in range(10):
    observation, _ = environment.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        inputs = {"observation": observation.astype("float32").reshape(1, -1)}
        action = policy.run(["action"], inputs)[0].reshape(environment.action_space.shape)
        for _ in range(int(facts["frame_skip"])):  # frames that each action is held for
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, over = total + float(reward), terminated or truncated
            if over:
                break
    print(f"episode {seed}: return {total:.2f}")
