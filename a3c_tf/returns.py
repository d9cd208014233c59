"""Returns and advantages: pure functions of time-major [T, K] arrays."""

from __future__ import annotations

from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf


def advantages_and_returns(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates, and the returns that the value net learns.

    Schulman et al. 2016 (arXiv:1506.02438), equation 16:

        delta_t = r_t + gamma * V(s_{t+1}) * (1 - terminated_t) - V(s_t)
        A_t     = delta_t + gamma * lambda * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}
        R_t     = A_t + V(s_t)

    With lambda = 1 this is the n-step return of Mnih et al. 2016 (arXiv:1602.01783, algorithm
    S3): the rewards up to the end of the rollout or of the episode, then the bootstrap. An
    episode that was truncated bootstraps from its final observation, one that terminated does
    not; nothing crosses the end of an episode.

    The environments reset on the step after an episode's end, so `values[t + 1]` is the value
    of the final observation where step t ended an episode. Row t + 1 is then the reset step; it
    took no action, and what is returned for it means nothing and must be masked out.

    Args:
        rewards: [T, K] float32.
        values: V(s_0) .. V(s_T), [T + 1, K] float32. No gradient flows through them.
        terminated: [T, K] float32, 1 where the episode ended by itself.
        truncated: [T, K] float32, 1 where it was cut off.
        gamma: discount factor.
        gae_lambda: 1 for n-step returns; less gives less variance and more bias.

    Returns:
        Advantages and returns, both [T, K] float32, without gradient.
    """
    values = tf.stop_gradient(values)
    deltas = rewards + gamma * values[1:] * (1.0 - terminated) - values[:-1]
    decays = gamma * gae_lambda * (1.0 - terminated) * (1.0 - truncated)
    advantages = []
    advantage = tf.zeros_like(deltas[0])
    # Unrolled: the executor that runs the graph in the worker's own thread has no loops.
    for delta, decay in zip(
        reversed(tf.unstack(deltas)), reversed(tf.unstack(decays)), strict=True
    ):
        advantage = delta + decay * advantage
        advantages.append(advantage)
    stacked = tf.stack(advantages[::-1])
    return stacked, stacked + values[:-1]
