"""Asynchronous n-step Q-learning: action values, a target net, and epsilon-greedy actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from a3c_tf.actions import only_allowed
from a3c_tf.agents.base import Agent
from a3c_tf.agents.learning import Hyperparameters, Rollout
from a3c_tf.distributions import Categorical
from a3c_tf.graphs import CompiledFunction, Tensor, tf_variables
from a3c_tf.losses import explained_variance
from a3c_tf.quiet import keras, tf
from a3c_tf.returns import advantages_and_returns
from a3c_tf.schedules import Schedule


@dataclass(frozen=True)
class NStepQHyperparameters(Hyperparameters):
    """What n-step Q-learning needs beside the nets and the optimizer.

    Attributes:
        annealing: how much of it is left, by the global step: 1 is always a random action, 0 the
            worker's own final epsilon.
        final_epsilons: dealt out to the workers in turn, so that they explore differently. (The
            paper draws one of these three, with probabilities .4, .3, .3.)
        target_interval: environment steps between two copies of the net to the target net.
    """

    annealing: Schedule = field(default_factory=lambda: Schedule(1.0, 0.0, 4_000_000))
    final_epsilons: tuple[float, ...] = (0.1, 0.01, 0.5)
    target_interval: int = 40_000


class NStepQAgent(Agent):
    """Asynchronous n-step Q-learning (Mnih et al. 2016, arXiv:1602.01783, algorithm S2).

    Args:
        model: from [B, ...] observations to Q(s, a), [B, actions].
        observation_space: of one environment.
        action_space: Discrete.
        optimizer: see `Agent`.
        hyperparameters: see `NStepQHyperparameters`.
        seed: of the actions that `act` draws.
        target: the target net; by default a copy of `model`.

    Raises:
        ValueError: actions that are not Discrete, or a model whose outputs do not fit them.
    """

    statistics = ("loss/total", "train/action_value", "train/explained_variance")
    hyperparameters_type = NStepQHyperparameters

    def __init__(
        self,
        model: keras.Model,
        observation_space: gym.Space,
        action_space: gym.Space,
        optimizer: keras.optimizers.Optimizer | None = None,
        hyperparameters: NStepQHyperparameters | None = None,
        seed: int = 0,
        target: keras.Model | None = None,
    ) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise ValueError(f"n-step Q-learning needs Discrete actions, not {action_space}")
        if tuple(model.output_shape) != (None, int(action_space.n)):
            raise ValueError(
                f"the model {model.name!r} has an output of the shape {model.output_shape}; values "
                f"of {action_space} need {(None, int(action_space.n))}"
            )
        if target is None:
            target = keras.models.clone_model(model)
            target.set_weights(model.get_weights())
        target.trainable = False
        nets = {"model": model, "target": target}
        super().__init__(nets, observation_space, action_space, optimizer, hyperparameters, seed)
        self.model = model
        self.target = target

        def copy() -> list[Tensor]:
            pairs = zip(tf_variables(target.weights), tf_variables(model.weights), strict=True)
            for theirs, ours in pairs:
                theirs.assign(ours)
            return []

        self._update_target = CompiledFunction(copy, [])

    def distribution(
        self, observations: Sequence[Tensor], state: Tensor, starts: Tensor, exploration: Any
    ) -> tuple[Categorical, Tensor]:
        """The epsilon-greedy policy: every allowed action gets at least epsilon / their number."""
        values = self._values(self.model, observations)
        mask = self.observations.mask(observations)
        allowed = tf.ones_like(values) if mask is None else tf.cast(mask, tf.float32)
        count = tf.reduce_sum(allowed, axis=-1, keepdims=True)
        any_of_them = tf.math.divide_no_nan(allowed, count)
        greedy = tf.one_hot(tf.argmax(values, axis=-1), values.shape[-1])
        mixed = (1.0 - exploration) * greedy + exploration * any_of_them
        return Categorical(tf.math.log(mixed)), state

    def values(self, observations: Sequence[Tensor], state: Tensor, starts: Tensor) -> Tensor:
        """The value of the best action, max_a Q(s, a), [K]."""
        return tf.reduce_max(self._values(self.model, observations), axis=-1)

    def _values(self, net: keras.Model, observations: Sequence[Tensor]) -> Tensor:
        """Q(s, a) of the allowed actions, [B, actions]; hardly anything for the others."""
        values = net(self.observations.inputs(observations))
        return only_allowed(values, self.observations.mask(observations))

    def exploration(self, global_step: int, worker: int) -> float:
        """The worker's epsilon: from 1 in a straight line to its own final value."""
        final = self.hyperparameters.final_epsilons
        own: float = final[worker % len(final)]
        return own + (1.0 - own) * float(self.hyperparameters.annealing(global_step))

    def after_steps(self, before: int, after: int) -> None:
        """Copies the net to the target net wherever `target_interval` steps are full."""
        interval = self.hyperparameters.target_interval
        if after // interval > before // interval:
            self._update_target()

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The mean of (R_t - Q(s_t, a_t))^2 over the valid steps.

        R_t = r_t + gamma r_{t+1} + ... + gamma^n max_a Q_target(s_{t+n}, a), cut at episode ends
        like the returns of A3C: without lambda they do not depend on the values in between.
        """
        steps, envs = rollout.rewards.shape
        rows = rollout.all_rows
        best = tf.reduce_max(self._values(self.target, rows), -1)
        bootstrap = tf.reshape(best, [steps + 1, envs])
        _, returns = advantages_and_returns(
            self.learned_rewards(rollout.rewards),
            bootstrap,
            rollout.terminated,
            rollout.truncated,
            self.hyperparameters.gamma,
            1.0,
        )
        rows = [part[: steps * envs] for part in rows]
        values = tf.reshape(self._values(self.model, rows), [steps, envs, -1])
        taken = tf.gather(values, rollout.actions, batch_dims=2)
        weights = rollout.valid / tf.maximum(tf.reduce_sum(rollout.valid), 1.0)
        total = tf.reduce_sum(weights * tf.square(returns - taken))
        mean_value = tf.reduce_sum(weights * tf.reduce_max(values, -1))
        return total, (total, mean_value, explained_variance(taken, returns, rollout.valid))
