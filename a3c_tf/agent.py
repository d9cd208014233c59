"""The A3C agent: nets, hyper-parameters and loss; acts, saves and loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from a3c_tf.distributions import Categorical, actions_for
from a3c_tf.envs.runner import observation_dtype
from a3c_tf.envs.spaces import space_from_json, space_to_json
from a3c_tf.graphs import CompiledFunction, Tensor, tf_variables
from a3c_tf.losses import Reduction, a3c_loss, explained_variance
from a3c_tf.quiet import keras, tf
from a3c_tf.returns import advantages_and_returns
from a3c_tf.schedules import Schedule

FORMAT = 1  # of a saved agent


@dataclass(frozen=True)
class Hyperparameters:
    """What the learner needs beside the nets and the optimizer.

    Attributes:
        gamma: discount factor.
        gae_lambda: 1 for the paper's n-step returns; less gives less variance and more bias.
        learning_rate: of the optimizer, by the global step.
        entropy_coefficient: weight of the entropy bonus, by the global step.
        value_coefficient: weight of the value loss.
        max_gradient_norm: gradients are scaled down to this global norm; 0 leaves them alone.
        reduction: "mean" over the steps of a rollout, or the paper's "sum".
    """

    gamma: float = 0.99
    gae_lambda: float = 1.0
    learning_rate: Schedule = field(default_factory=lambda: Schedule.constant(7e-4))
    entropy_coefficient: Schedule = field(default_factory=lambda: Schedule.constant(0.01))
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5
    reduction: Reduction = "mean"


class Rollout(NamedTuple):
    """T steps of K environments as tensors; all but the observations and actions are float32.

    Attributes:
        observations: s_0 .. s_T, [T + 1, K, ...].
        actions: as the policy drew them, [T, K].
        rewards: [T, K].
        terminated: 1 where the episode ended by itself, [T, K].
        truncated: 1 where it was cut off, [T, K].
        valid: 1 where an action was taken, 0 on a reset step, [T, K].
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


class A3CAgent:
    """A policy and a value net, with what is needed to train them and to act.

    Args:
        model: from [B, ...] observations to ([B, outputs] policy outputs, [B] values).
        observation_space: of one environment.
        action_space: of one environment.
        optimizer: any Keras optimizer; by default RMSprop with the decay and epsilon of the
            paper's Shared RMSProp. Its learning rate is set from the hyper-parameters.
        hyperparameters: see `Hyperparameters`.
        seed: of the actions that `act` draws.
    """

    # Names of what `loss` returns beside the loss, in order: TensorBoard's tags.
    statistics = (
        "loss/policy",
        "loss/value",
        "loss/entropy",
        "loss/total",
        "train/explained_variance",
    )

    def __init__(
        self,
        model: keras.Model,
        observation_space: gym.Space,
        action_space: gym.Space,
        optimizer: keras.optimizers.Optimizer | None = None,
        hyperparameters: Hyperparameters | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.policy = keras.Model(model.input, model.outputs[0], name="policy")
        self.value = keras.Model(model.input, model.outputs[1], name="value")
        self.observation_space = observation_space
        self.action_space = action_space
        self.optimizer = optimizer or keras.optimizers.RMSprop(rho=0.99, epsilon=0.1)
        self.hyperparameters = hyperparameters or Hyperparameters()
        self.actions = actions_for(action_space)
        self._seed = seed
        self._calls = 0
        self._act: dict[tuple[int, bool], CompiledFunction] = {}

    # Nets ---------------------------------------------------------------------------------

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the nets, in an order that is the same for every clone."""
        return tf_variables(self.model.variables)

    @property
    def weights(self) -> list[tf.Variable]:
        """The variables that workers share: all but the state of random layers."""
        return tf_variables(self.model.weights)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that gradients are computed for."""
        return list(self.model.trainable_variables)

    def clone(self) -> A3CAgent:
        """An agent with nets of its own and the same weights.

        The optimizer is the same object: it belongs to the global variables, and a clone only
        computes gradients.
        """
        clone = A3CAgent(
            keras.models.clone_model(self.model),
            self.observation_space,
            self.action_space,
            self.optimizer,
            self.hyperparameters,
            self._seed,
        )
        clone.model.set_weights(self.model.get_weights())
        return clone

    # Inside a worker's graph ----------------------------------------------------------------

    def distribution(self, observations: Tensor) -> Categorical:
        """pi(.|s) for [B, ...] observations."""
        return self.actions.distribution(self.policy(observations))

    def loss(
        self, rollout: Rollout, entropy_coefficient: Tensor | float
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
            rollout.rewards,
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
            entropy_coefficient,
            self.hyperparameters.value_coefficient,
            self.hyperparameters.reduction,
        )
        explained = explained_variance(tf.stop_gradient(values[:-1]), returns, rollout.valid)
        return losses.total, (losses.policy, losses.value, losses.entropy, losses.total, explained)

    # Acting ---------------------------------------------------------------------------------

    def act(self, observation: Any, greedy: bool = False) -> Any:
        """The action for one observation, as the environment takes it.

        Args:
            observation: one element of the observation space.
            greedy: the most likely action instead of a drawn one.
        """
        return self.act_batch(np.asarray(observation)[None], greedy)[0]

    def act_batch(self, observations: Any, greedy: bool = False) -> npt.NDArray[Any]:
        """The actions for [B, ...] observations; each new B compiles a graph of its own."""
        batch = np.asarray(observations, observation_dtype(self.observation_space))
        if batch.shape[1:] != self._event_shape:
            raise ValueError(
                f"observations have shape {batch.shape[1:]}, the agent was trained on "
                f"{self._event_shape}"
            )
        function = self.compile_act(len(batch), greedy)
        self._calls += 1
        seed = tf.constant([self._seed, self._calls], tf.int64)
        actions: npt.NDArray[Any] = function(tf.constant(batch), seed)[0].numpy()
        return actions

    def compile_act(self, batch_size: int, greedy: bool = False) -> CompiledFunction:
        """The graph from ([B, ...] observations, [2] int64 seed) to [B] environment actions.

        Call it in the main thread before others use the agent: tracing is not for threads.
        """
        key = (batch_size, greedy)
        if key not in self._act:

            def act(observations: Tensor, seed: Tensor) -> Sequence[Tensor]:
                distribution = self.distribution(observations)
                noise = self.actions.noise([batch_size], seed)
                actions = distribution.mode() if greedy else distribution.sample(noise)
                return [self.actions.to_environment(actions)]

            dtype = observation_dtype(self.observation_space)
            self._act[key] = CompiledFunction(
                act,
                [
                    tf.TensorSpec([batch_size, *self._event_shape], dtype),
                    tf.TensorSpec([2], tf.int64),
                ],
            )
        return self._act[key]

    # Saving ---------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Writes `model.keras` and `agent.json` into a directory, made if it is not there."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.model.save(directory / "model.keras")
        description = {
            "format": FORMAT,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "hyperparameters": asdict(self.hyperparameters),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
        }
        (directory / "agent.json").write_text(json.dumps(description, indent=2) + "\n")

    @property
    def _event_shape(self) -> tuple[int, ...]:
        return tuple(self.observation_space.shape or ())


def load_agent(directory: str | Path, seed: int = 0) -> A3CAgent:
    """Loads an agent that `A3CAgent.save` wrote; it acts at once.

    Nothing in the files is executed: the model is loaded in Keras's safe mode.

    Args:
        directory: a run's `best`, `successful`, `<steps>_finish`, `<steps>_except`, or any of
            its checkpoints.
        seed: of the actions that the agent draws.

    Raises:
        FileNotFoundError: the directory holds no agent.
        ValueError: the files are damaged or of another format.
    """
    directory = Path(directory)
    path = directory / "agent.json"
    if not path.is_file():
        raise FileNotFoundError(f"no agent in {directory}: {path.name} is missing")
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise ValueError(f"format {description['format']}, expected {FORMAT}")
        settings = dict(description["hyperparameters"])
        for name in ("learning_rate", "entropy_coefficient"):
            settings[name] = Schedule(**settings[name])
        optimizer = keras.saving.deserialize_keras_object(description["optimizer"], safe_mode=True)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ValueError(f"optimizer {description['optimizer']!r}")
        return A3CAgent(
            keras.saving.load_model(directory / "model.keras", compile=False, safe_mode=True),
            space_from_json(description["observation_space"]),
            space_from_json(description["action_space"]),
            optimizer,
            Hyperparameters(**settings),
            seed,
        )
    except Exception as error:  # Keras raises all kinds, zipfile and h5py their own
        raise ValueError(f"the agent in {directory} cannot be loaded: {error}") from error
