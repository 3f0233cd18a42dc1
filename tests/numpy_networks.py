"""The baselines' networks written out in NumPy, float64, one row at a time."""

import jax
import numpy as np


def np_tree(net):
    """The network with its leaves as float64 arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), net)


def np_linear(layer, x):
    return x @ layer.weight + layer.bias


def np_layer_norm(norm, x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * norm.weight + norm.bias


def np_elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def np_mish(x):
    return x * np.tanh(np.logaddexp(0, x))


def np_mlp(net, x, activation=np_elu):
    """Hidden layers, then one without activation."""
    for layer, norm in zip(net.layers, net.norms, strict=False):
        x = np_linear(layer, x)
        x = activation(x if norm is None else np_layer_norm(norm, x))
    return np_linear(net.layers[-1], x)


def np_average_l1(x):
    return x / max(np.abs(x).mean(), 1e-8)


def twins(critics):
    """The two networks whose parameters are stacked."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], critics) for i in range(2)]


def np_plain_q(critics, states, actions):
    """Both critics on [s; a], of shape (2, batch)."""
    return np.array(
        [
            [np_mlp(critic, np.concatenate(pair))[0] for pair in zip(states, actions, strict=True)]
            for critic in twins(critics)
        ]
    )
