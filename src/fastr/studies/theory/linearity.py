"""Q is linear in the feature: Eq. (Q-linear), its norm bound, and the residual off CP."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.report.table import Table
from fastr.studies.theory import (
    Section,
    curve,
    exponents,
    interval,
    judge,
    log_interval,
    log_plot,
)
from fastr.studies.theory.mdp import (
    FactoredMDP,
    Feature,
    FiniteMDP,
    Policy,
    mixture,
    random_policy,
    waves,
)

STATEMENT = (
    "Claim (Eq. (Q-linear); App. Derivation of the Q-linearity): where kernel and reward are CP "
    "products, P = psi^T m and r = psi^T theta_r, the Q-function of every policy is psi^T w, and "
    "|w| is at most |theta_r| + gamma B_m1 R_max / (1 - gamma).",
    "Measured: exact Q of random policies, on random mixtures and on a grid of cosines. Then a "
    "dial adds products that no CP kernel of the same d contains, by a known epsilon_CP: the rms "
    "residual is at most gamma epsilon_CP std(V).",
)
POINTS = 16
"""Grid points per axis of the cosines."""
DIALS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def norm_bound(model: FactoredMDP) -> float:
    """|w^pi| <= |theta_r| + gamma B_m1 R_max / (1 - gamma) (App. Derivation of the Q-linearity)."""
    mass = np.linalg.norm(model.next_factor, axis=1).sum()
    largest = np.abs(model.mdp.reward).max()
    past = model.discount * mass * largest / (1.0 - model.discount)
    return float(np.linalg.norm(model.reward_weight) + past)


def linearity(model: FactoredMDP, policy: Policy) -> tuple[float, float]:
    """Eq. (Q-linear) on one policy: max |Q - psi^T w| over (s,a), and |w| over its bound.

    w^pi = theta_r + gamma times the integral of m V^pi.
    """
    weight = model.reward_weight + model.discount * model.next_factor.T @ model.mdp.value(policy)
    error = np.abs(model.mdp.q_function(policy) - model.feature @ weight).max()
    return float(error), float(np.linalg.norm(weight)) / norm_bound(model)


def random_checks(
    model: FactoredMDP, policies: int, generator: Generator
) -> Float[np.ndarray, "policy 2"]:
    """`linearity` of random policies."""
    states, actions = model.mdp.reward.shape
    chosen = (random_policy(states, actions, generator) for _ in range(policies))
    return np.array([linearity(model, policy) for policy in chosen])


def off_span(
    feature: Feature, targets: Float[np.ndarray, "state action target"]
) -> Float[np.ndarray, "state action target"]:
    """The residual of each target as a linear function of the feature (least squares)."""
    rows = feature.reshape(-1, feature.shape[-1])
    flat = targets.reshape(len(rows), -1)
    weights = np.linalg.lstsq(rows, flat, rcond=1e-12)[0]
    return (flat - rows @ weights).reshape(targets.shape)


def policy_residual(
    mdp: FiniteMDP, feature: Feature, policy: Policy, cp_error: float
) -> tuple[float, float]:
    """The rms of Q off the feature's span, and its bound by epsilon_CP.

    With g the best CP product, Q - psi^T w = gamma times the integral of (P - g) V. Both P and g
    integrate to one, so that V may be centred, and the rms is at most gamma epsilon_CP times the
    standard deviation of V under nu (Cauchy-Schwarz).
    """
    residual = off_span(feature, mdp.q_function(policy)[..., None])
    allowed = mdp.discount * np.sqrt(cp_error) * mdp.value(policy).std()
    return float(np.sqrt(np.square(residual).mean())), float(allowed)


def off_cp(seed: int) -> list[tuple[float, float]]:
    """For each dial the residual and its bound at the policy where they are closest."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=4)
    policies = [random_policy(POINTS, POINTS, generator) for _ in range(20)]
    rows = []
    for dial in DIALS:
        truth = waves(1, 1, dial=dial)
        mdp, psi = truth.table(POINTS, weight, 0.9), truth.feature(POINTS)
        pairs = [policy_residual(mdp, psi, policy, truth.cp_error) for policy in policies]
        rows.append(max(pairs, key=lambda pair: pair[0] / pair[1]))
    return rows


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    policies: int = 100

    def run(self) -> Section:
        """On CP, then off it."""
        families = {
            "mixture": lambda generator: mixture(30, 12, generator),
            "cosines": lambda generator: waves(1, 1).cp_model(
                POINTS, generator.normal(size=4), 0.9
            ),
        }
        on_cp = {}
        for name, family in families.items():
            generators = [np.random.default_rng(seed) for seed in self.seeds]
            on_cp[name] = np.concatenate(
                [random_checks(family(each), self.policies, each) for each in generators]
            )
        checks = np.concatenate(list(on_cp.values()))
        worst, tightest = checks.max(0)
        residual, allowed = np.moveaxis(np.array([off_cp(seed) for seed in self.seeds]), -1, 0)
        errors = np.sqrt([waves(1, 1, dial=dial).cp_error for dial in DIALS])
        slope, share = interval(exponents(errors, residual)), (residual / allowed).max()
        verdicts = (
            judge(
                "On exact CP-MDPs Q is linear in psi for every policy.",
                f"largest residual {worst:.1e} over {len(checks)} random policies",
                worst < 1e-10,
            ),
            judge(
                "The norm bound on w is never violated.",
                f"|w| is at most {tightest:.3f} of the bound: it holds and is loose",
                tightest <= 1.0,
            ),
            judge(
                "Off CP the rms residual stays below gamma epsilon_CP std(V).",
                f"at most {share:.2f} of it over all dials, policies and seeds",
                share <= 1.0,
            ),
            judge(
                "Off CP the residual grows in proportion to epsilon_CP.",
                f"fitted exponent {slope:.2f}",
                abs(slope.mean - 1.0) < 0.1,
            ),
        )
        curves = (
            curve("residual of Q", errors, log_interval(residual)),
            curve("gamma epsilon_CP std(V)", errors, log_interval(allowed).mean, 1, "--"),
        )
        title = "Q off the span of psi, worst of 20 policies"
        plot = log_plot("linearity", title, "epsilon_CP", "rms over (s, a)", curves)
        rows = [
            (name, str(len(found)), f"{found.max(0)[0]:.1e}", f"{found.max(0)[1]:.3f}")
            for name, found in on_cp.items()
        ]
        columns = ("family", "policies", "largest |Q - psi^T w|", "largest |w| / bound")
        table = Table("linearity-1", "Exact CP-MDPs", columns, rows)
        title = "Q is linear in the feature"
        return Section("linearity", title, STATEMENT, verdicts, (table,), (plot,))
