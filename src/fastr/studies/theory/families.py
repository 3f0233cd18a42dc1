"""Random finite MDPs: mixtures that are exactly CP, energies whose log ratio is, and a lock."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.mdp import CPMDP, FactoredMDP


def mixture(
    states: int,
    actions: int,
    generator: np.random.Generator,
    *,
    modes: int = 3,
    outcomes: int = 2,
    discount: float = 0.9,
) -> CPMDP:
    """The state chooses a mode, the action gates the mode's outcomes (Sec. The FaStR Framework).

    P(s'|s,a) = sum_i p_i(s) sum_b u_ib(a) m_ib(s') with distributions p(s), u_i(a), m_ib: a CP
    product of d = modes x outcomes terms whose probabilities are valid by construction.
    """
    chosen = generator.dirichlet(np.full(modes, 0.5), size=states)
    gates = generator.dirichlet(np.full(outcomes, 0.5), size=(actions, modes))
    landings = generator.dirichlet(np.full(states, 0.3), size=modes * outcomes)
    reward = generator.uniform(-1.0, 1.0, size=modes * outcomes)
    return CPMDP(
        np.repeat(chosen, outcomes, axis=1),
        gates.reshape(actions, modes * outcomes),
        landings.T,
        reward,
        discount,
    )


@dataclass(frozen=True)
class EnergyMDP(FactoredMDP):
    """An energy-based MDP: P(s'|s,a) = exp(psi(s,a)^T m(s')) / Z(s,a).

    Its log ratio to any distribution q(s') is a CP product up to log Z(s,a), which the ranking loss
    of Eq. (nce) cannot see; its density is not. The first coordinate of psi is 1, so that m can
    hold log q: without that the log ratio to q would need one CP term more.
    """

    def kernel(self) -> Float[np.ndarray, "state action next"]:
        """exp(psi(s,a)^T m(s')) / Z(s,a)."""
        energies = self.feature @ self.next_factor.T
        weights = np.exp(energies - energies.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def energy(
    states: int,
    actions: int,
    generator: np.random.Generator,
    *,
    features: int = 6,
    scale: float = 1.5,
    discount: float = 0.9,
) -> EnergyMDP:
    """Gaussian factors; `scale` is the standard deviation of the log ratio psi^T m."""
    spread = (scale / np.sqrt(features - 1)) ** (1 / 3)
    shapes = ((states, features), (actions, features), (states, features))
    of_states, of_actions, of_next = (spread * generator.normal(size=shape) for shape in shapes)
    of_states[:, 0] = of_actions[:, 0] = 1.0
    return EnergyMDP(of_states, of_actions, of_next, generator.normal(size=features), discount)


def lock(
    generator: np.random.Generator, *, regions: int = 3, width: int = 5, actions: int = 48
) -> CPMDP:
    """A chain of regions, each opened by turning a dial near its key; reward at the far end.

    Actions are angles; in region i the chain advances with probability
    (1 + 0.9 cos(angle - key_i)) / 2 and falls back to the start otherwise. With the state choosing
    its region (softly) and phi_a = (1, cos, sin) this is exactly CP with d = 3 x regions. Near a
    key the loss is quadratic in the angle, so that the gaps between neighbouring actions are small.
    Undiscounted: for episodes of finite length.
    """
    states = regions * width
    home = np.repeat(np.arange(regions), width)
    chosen = 0.9 * np.eye(regions)[home] + 0.1 / regions
    angles = 2.0 * np.pi * np.arange(actions) / actions
    turned = np.stack([np.ones(actions), np.cos(angles), np.sin(angles)], axis=1)
    keys = generator.uniform(0.0, 2.0 * np.pi, size=regions)
    landings = np.zeros((states, regions, 3))
    for region, key in enumerate(keys):
        onward, back = np.zeros(states), np.zeros(states)
        onward[home == min(region + 1, regions - 1)] = generator.dirichlet(np.ones(width))
        back[home == 0] = generator.dirichlet(np.ones(width))
        pull = 0.45 * (onward - back)
        landings[:, region] = np.stack(
            [0.5 * (onward + back), np.cos(key) * pull, np.sin(key) * pull], axis=1
        )
    reward = np.zeros((regions, 3))
    reward[-1] = 0.5, 0.45 * np.cos(keys[-1]), 0.45 * np.sin(keys[-1])
    return CPMDP(
        np.repeat(chosen, 3, axis=1),
        np.tile(turned, (1, regions)),
        landings.reshape(states, -1),
        reward.ravel(),
        1.0,
    )
