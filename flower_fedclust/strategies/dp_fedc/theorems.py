"""What the paper of DP-FedC says of its noise, as functions, to be held beside what composition gives.

Li et al., "Differentially private federated clustering over non-IID data", 2024, section V-B. The guarantee of a run
rests on none of this: see :mod:`flower_fedclust.privacy.accounting`.
"""

from __future__ import annotations

import math


def sensitivity(max_gradient_norm: float, n_steps: int, eta: float) -> float:
    """Return by how much a client's centers can move if one of its rows is replaced (Lemma 2, equation 28).

    ``2 G Q_2 / eta``: each of the steps may differ by two gradients of norm G. True only where the gradient of every
    minibatch is clipped to G, which the paper assumes.

    Parameters
    ----------
    max_gradient_norm : float
        G.
    n_steps : int
        Q_2 of the round.
    eta : float
        What a gradient is divided by.
    """
    return 2.0 * max_gradient_norm * n_steps / eta


def noise_multiplier(sampling_ratio: float, epsilon: float, delta: float) -> float:
    """Return the deviation of the noise over the sensitivity for (epsilon, delta) in one round (Theorem 2).

    From equation (29), ``sigma^2 = 32 G^2 Q_2^2 q^2 ln(1.25 q / delta) / (eta^2 epsilon^2)``. Equation (31) has a
    factor 4 where Lemmas 1 and 2 give 8; with 8 it leads to (29). The theorem is for epsilon of at most 1. For q above
    1/2, where Theorem 1 gains nothing, (29) asks for more noise than Lemma 1 does.

    Parameters
    ----------
    sampling_ratio : float
        q, the rows that a client uses in a round over the rows that it has.
    epsilon, delta : float
        Of the round.

    Raises
    ------
    ValueError
        If ``1.25 q / delta`` is not above 1, so that (29) is not a variance.
    """
    logarithm = 1.25 * sampling_ratio / delta
    if logarithm <= 1:
        raise ValueError(
            f"the sampling ratio is {sampling_ratio:g} and delta {delta:g}: equation (29) needs 1.25 q above delta."
        )
    return 2.0 * sampling_ratio * math.sqrt(2.0 * math.log(logarithm)) / epsilon


def total_epsilon(epsilon: float, sampling_ratio: float, p: float, n_rounds: int, c0: float) -> float:
    """Return the paper's total of many rounds (Theorem 3): ``c0 q^2 epsilon sqrt(p R / (1 - q))``.

    The paper never gives c0, and its own settings have q above 1, where this is no number.

    Parameters
    ----------
    epsilon : float
        Of one round.
    sampling_ratio : float
        q.
    p : float
        The probability with which a client is drawn.
    n_rounds : int
        R.
    c0 : float
        A constant.

    Returns
    -------
    float
        NaN where q is 1 or more.
    """
    if sampling_ratio >= 1:
        return math.nan
    return c0 * sampling_ratio**2 * epsilon * math.sqrt(p * n_rounds / (1.0 - sampling_ratio))
