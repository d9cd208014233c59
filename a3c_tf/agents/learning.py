"""What an algorithm learns from, and how: rollouts and hyper-parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from a3c_tf.graphs import Tensor
from a3c_tf.normalization import rows
from a3c_tf.schedules import Schedule


@dataclass(frozen=True)
class Hyperparameters:
    """What every learner needs beside the nets and the optimizer.

    Attributes:
        gamma: discount factor.
        learning_rate: of the optimizer, by the global step.
        max_gradient_norm: gradients are scaled down to this global norm; 0 leaves them alone.
        reward_clip: rewards are learned within plus and minus this; 0 leaves them alone.
    """

    gamma: float = 0.99
    learning_rate: Schedule = field(default_factory=lambda: Schedule.constant(7e-4))
    max_gradient_norm: float = 0.5
    reward_clip: float = 0.0

    def schedules(self) -> dict[str, Schedule]:
        """Those that change with the global step, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Schedule)}


class Rollout(NamedTuple):
    """T steps of K environments as tensors; all but the observations and actions are float32.

    Attributes:
        observations: s_0 .. s_T, [T + 1, K, ...], one tensor for each of `Observations.parts`.
        actions: as the policy drew them, [T, K] or [T, K, n].
        rewards: [T, K].
        terminated: 1 where the episode ended by itself, [T, K].
        truncated: 1 where it was cut off, [T, K].
        valid: 1 where an action was taken, 0 on a reset step, [T, K].
        discounted: G_t = r_t + gamma G_{t-1} within an episode, [T, K]; zeros where nobody asks.
        state: of a recurrent net, before the first step, [K, S].
        starts: 1 where s_t is the first of an episode, [T + 1, K].
    """

    observations: Sequence[Tensor]
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    discounted: Tensor
    state: Tensor
    starts: Tensor

    @property
    def all_rows(self) -> list[Tensor]:
        """The observations as [(T + 1) x K, ...], time-major."""
        return [rows(part) for part in self.observations]
