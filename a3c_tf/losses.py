"""The A3C loss."""

from __future__ import annotations

from typing import Literal, NamedTuple

from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf

Reduction = Literal["mean", "sum"]


class Losses(NamedTuple):
    """The terms of the loss, scalars; `total` is what is minimised."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def a3c_loss(
    log_probs: Tensor,
    entropies: Tensor,
    values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    valid: Tensor,
    entropy_coefficient: Tensor | float,
    value_coefficient: float = 0.5,
    reduction: Reduction = "mean",
) -> Losses:
    """The loss of Mnih et al. 2016 (arXiv:1602.01783, section 4), over the valid steps.

        total = policy + value_coefficient * value - entropy_coefficient * entropy
        policy  = -log pi(a_t|s_t) * A_t
        value   = (R_t - V(s_t))^2
        entropy = H(pi(.|s_t))

    Advantages and returns are constants here: the policy term has no gradient for the value
    net. One reduction serves all terms: `sum` adds up the steps of the rollout, as the paper
    does; `mean` divides by their number, which keeps the learning rate's meaning when the
    rollout's length or the number of environments changes.

    Args:
        log_probs: log pi(a_t|s_t) in nats, [T, K].
        entropies: in nats, [T, K].
        values: V(s_t), [T, K].
        advantages: A_t, [T, K].
        returns: R_t, [T, K].
        valid: 1 where an action was taken, 0 on a reset step, [T, K].
        entropy_coefficient: weight of the entropy bonus, beta in the paper.
        value_coefficient: weight of the value loss.
        reduction: "mean" or "sum".

    Returns:
        The total and its three terms before weighting, float32 scalars.
    """
    # A rollout without a valid step has a zero loss, not 0 / 0.
    weights = valid / tf.maximum(tf.reduce_sum(valid), 1.0) if reduction == "mean" else valid
    advantages = tf.stop_gradient(advantages)
    returns = tf.stop_gradient(returns)
    policy = -tf.reduce_sum(weights * log_probs * advantages)
    value = tf.reduce_sum(weights * tf.square(returns - values))
    entropy = tf.reduce_sum(weights * entropies)
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    return Losses(total, policy, value, entropy)


def explained_variance(values: Tensor, returns: Tensor, valid: Tensor) -> Tensor:
    """1 - Var[R - V] / Var[R] over the valid steps: 1 is perfect, 0 no better than a constant.

    Args:
        values: V(s_t), [T, K].
        returns: R_t, [T, K].
        valid: 1 where an action was taken, [T, K].

    Returns:
        A float32 scalar; 0 where all returns are equal.
    """
    count = tf.maximum(tf.reduce_sum(valid), 1.0)

    def variance(x: Tensor) -> Tensor:
        mean = tf.reduce_sum(valid * x) / count
        return tf.reduce_sum(valid * tf.square(x - mean)) / count

    of_returns = variance(returns)
    ratio = tf.math.divide_no_nan(variance(returns - values), of_returns)
    return tf.where(of_returns > 0.0, 1.0 - ratio, 0.0)
