"""A3C: a policy, and a value net that says how much better than expected it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import gymnasium as gym

from a3c_tf.agents.base import Agent, Hyperparameters, Rollout
from a3c_tf.distributions import Distribution
from a3c_tf.graphs import Tensor
from a3c_tf.losses import Reduction, a3c_loss, explained_variance
from a3c_tf.quiet import keras, tf
from a3c_tf.returns import advantages_and_returns
from a3c_tf.schedules import Schedule


@dataclass(frozen=True)
class A3CHyperparameters(Hyperparameters):
    """What A3C needs beside the nets and the optimizer.

    Attributes:
        gae_lambda: 1 for the paper's n-step returns; less gives less variance and more bias.
        entropy_coefficient: weight of the entropy bonus, by the global step.
        value_coefficient: weight of the value loss.
        reduction: "mean" over the steps of a rollout, or the paper's "sum".
    """

    gae_lambda: float = 1.0
    entropy_coefficient: Schedule = field(default_factory=lambda: Schedule.constant(0.01))
    value_coefficient: float = 0.5
    reduction: Reduction = "mean"


class A3CAgent(Agent):
    """Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

    Args:
        model: from [B, ...] observations to ([B, outputs] policy outputs, [B] values).
        observation_space: of one environment.
        action_space: of one environment.
        optimizer: see `Agent`.
        hyperparameters: see `A3CHyperparameters`.
        seed: of the actions that `act` draws.
    """

    statistics = (
        "loss/policy",
        "loss/value",
        "loss/entropy",
        "loss/total",
        "train/explained_variance",
    )
    hyperparameters_type = A3CHyperparameters

    def __init__(
        self,
        model: keras.Model,
        observation_space: gym.Space,
        action_space: gym.Space,
        optimizer: keras.optimizers.Optimizer | None = None,
        hyperparameters: A3CHyperparameters | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {"model": model}, observation_space, action_space, optimizer, hyperparameters, seed
        )
        needed = [(None, self.actions.output_size), (None,)]
        shapes = [tuple(output.shape) for output in model.outputs]
        if shapes != needed:
            raise ValueError(
                f"the model {model.name!r} has outputs of the shapes {shapes}; a policy for "
                f"{action_space} and a value need {needed}"
            )
        self.model = model
        self.policy = keras.Model(model.input, model.outputs[0], name="policy")
        self.value = keras.Model(model.input, model.outputs[1], name="value")

    def distribution(self, observations: Tensor, exploration: Tensor | float) -> Distribution:
        """pi(.|s) for [B, ...] observations; exploration is the loss's business."""
        return self.actions.distribution(self.policy(observations))

    def exploration(self, global_step: int, worker: int) -> float:
        """The weight of the entropy bonus, the same for all workers."""
        coefficient: float = self.hyperparameters.entropy_coefficient(global_step)
        return coefficient

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of a rollout and the scalars named by `statistics`.

        One forward pass covers the rollout and the observation after it. The weights are those
        that acted, so the log-probabilities are too.
        """
        steps, envs = rollout.rewards.shape
        inputs = tf.reshape(rollout.observations, [(steps + 1) * envs, *self._event_shape])
        outputs, values = self.model(inputs)
        distribution = self.actions.distribution(
            tf.reshape(outputs, [steps + 1, envs, -1])[:-1]  # the bootstrap step has no action
        )
        values = tf.reshape(values, [steps + 1, envs])
        advantages, returns = advantages_and_returns(
            self.learned_rewards(rollout.rewards),
            values,
            rollout.terminated,
            rollout.truncated,
            self.hyperparameters.gamma,
            self.hyperparameters.gae_lambda,
        )
        losses = a3c_loss(
            distribution.log_prob(rollout.actions),
            distribution.entropy(),
            values[:-1],
            advantages,
            returns,
            rollout.valid,
            exploration,
            self.hyperparameters.value_coefficient,
            self.hyperparameters.reduction,
        )
        explained = explained_variance(tf.stop_gradient(values[:-1]), returns, rollout.valid)
        return losses.total, (losses.policy, losses.value, losses.entropy, losses.total, explained)
