"""A3C: a policy, and a value net that says how much better than expected it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from a3c_tf.agents.base import Agent
from a3c_tf.agents.learning import Hyperparameters, Rollout
from a3c_tf.distributions import Distribution
from a3c_tf.graphs import Tensor
from a3c_tf.losses import Reduction, a3c_loss, explained_variance
from a3c_tf.networks import join_nets
from a3c_tf.normalization import REWARD_SCALE
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
        model: from [B, ...] observations to ([B, outputs] policy outputs, [B] values), in the
            structure of `Observations.inputs`; or a pair of a policy net and a value net, which
            may be subclassed models; or a function from the two spaces to either. A recurrent
            model takes (observations, state [K, S], starts [B]) and returns (outputs, values,
            state [K, S]), its batch being time-major, T steps of K environments; see
            `EpisodicLSTM`.
        observation_space: of one environment.
        action_space: of one environment.
        optimizer: see `Agent`.
        hyperparameters: see `A3CHyperparameters`.
        seed: of the actions that `act` draws.
        reward_scale: scales the rewards that are learned; from `build_reward_scale`.

    Raises:
        ValueError: a net's outputs do not fit the spaces.
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
        model: Any,
        observation_space: gym.Space,
        action_space: gym.Space,
        optimizer: keras.optimizers.Optimizer | None = None,
        hyperparameters: A3CHyperparameters | None = None,
        seed: int = 0,
        reward_scale: keras.Model | None = None,
    ) -> None:
        self.model = _one_model(model, observation_space, action_space)
        nets = {"model": self.model}
        if reward_scale is not None:
            nets[REWARD_SCALE] = reward_scale
        super().__init__(nets, observation_space, action_space, optimizer, hyperparameters, seed)
        outputs = self.model.outputs
        shapes = [tuple(output.shape) for output in outputs[:2]]
        needed = [(None, self.actions.output_size), (None,)]
        if shapes != needed:
            raise ValueError(
                f"the model {self.model.name!r} has outputs of the shapes {shapes}; a policy for "
                f"{action_space} and a value need {needed}"
            )
        self.state_size = int(outputs[2].shape[-1]) if len(outputs) == 3 else 0
        # Acting needs no values.
        without_values = [outputs[0], outputs[2]] if self.state_size else outputs[0]
        self.policy = keras.Model(self.model.input, without_values, name="policy")

    def distribution(
        self, observations: Sequence[Tensor], state: Tensor, starts: Tensor, exploration: Any
    ) -> tuple[Distribution, Tensor]:
        """pi(.|s), and the next state; exploration is the loss's business."""
        outputs = self.policy(self._inputs(observations, state, starts))
        if self.state_size:
            outputs, state = outputs
        mask = self.observations.mask(observations)
        return self.actions.distribution(outputs, mask), state

    def values(self, observations: Sequence[Tensor], state: Tensor, starts: Tensor) -> Tensor:
        """The value V(s) of each observation, [K]."""
        return self.model(self._inputs(observations, state, starts))[1]

    def _inputs(self, observations: Sequence[Tensor], state: Tensor, starts: Tensor) -> Any:
        inputs = self.observations.inputs(observations)
        return [inputs, state, starts] if self.state_size else inputs

    def exploration(self, global_step: int, worker: int) -> float:
        """The weight of the entropy bonus, the same for all workers."""
        coefficient: float = self.hyperparameters.entropy_coefficient(global_step)
        return coefficient

    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of a rollout and the scalars named by `statistics`.

        One forward pass covers the rollout and the observation after it. The weights are those
        that acted, and a recurrent net starts from the state that acting started from; so the
        log-probabilities are the same too.
        """
        steps, envs = rollout.rewards.shape
        starts = tf.reshape(rollout.starts, [-1])
        outputs, values = self.model(self._inputs(rollout.all_rows, rollout.state, starts))[:2]
        # The bootstrap step has no action.
        outputs = tf.reshape(outputs, [steps + 1, envs, -1])[:-1]
        mask = self.observations.mask(rollout.observations)
        distribution = self.actions.distribution(outputs, mask if mask is None else mask[:-1])
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


def _one_model(model: Any, observation_space: gym.Space, action_space: gym.Space) -> keras.Model:
    """What the user gave as a model: one, a pair, or a function from spaces to either."""
    if not isinstance(model, keras.Model | tuple | list):
        model = model(observation_space, action_space)
    if isinstance(model, keras.Model):
        return model
    policy, value = model
    return join_nets(policy, value, observation_space)
