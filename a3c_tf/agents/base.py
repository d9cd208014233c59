"""What the driver needs of an agent, and what all agents have in common."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from a3c_tf.actions import Actions, actions_for
from a3c_tf.agents.learning import Hyperparameters, Rollout
from a3c_tf.distributions import Distribution
from a3c_tf.envs.spaces import space_to_json
from a3c_tf.graphs import CompiledFunction, Tensor, tf_variables
from a3c_tf.layers import all_layers
from a3c_tf.normalization import REWARD_SCALE, Normalizations
from a3c_tf.observations import Arrays, Observations
from a3c_tf.quiet import keras, tf
from a3c_tf.schedules import Schedule

FORMAT = 2  # of a saved agent
DESCRIPTION = "agent.json"

AnyAgent = TypeVar("AnyAgent", bound="Agent")


class Agent(ABC):
    """An asynchronous agent: nets, and the algorithm that trains them.

    An algorithm is a subclass that names its `statistics` and says how it acts (`distribution`),
    what it minimises (`loss`) and how much a worker explores (`exploration`). It may also do
    something as the global step rises (`after_steps`), such as to copy a target net, and say what
    it expects (`values`), which TensorBoard then shows. Its constructor takes its nets by name and
    passes them on.

    The rest is the same for all of them, and all that workers, server and monitor use:

    - a worker's local part is a `clone`, in whose graph `distribution` and `loss` are called;
    - `weights` are copied from the globals (pull), gradients of `trainable_variables` are
      applied to the globals (push) by the `optimizer`;
    - the server asks for `exploration` and the hyper-parameters' schedules at a global step,
      and calls `after_steps`, all under its lock;
    - evaluation uses `compile_act`; `save` and `load_agent` keep agents, and take them to
      worker processes.

    Args:
        nets: by the names of the constructor's arguments; each from [B, ...] observations.
        observation_space: of one environment.
        action_space: of one environment.
        optimizer: any Keras optimizer; by default RMSprop with the decay and epsilon that the
            authors of A3C used. Its learning rate is set from the hyper-parameters.
        hyperparameters: of the algorithm's own kind.
        seed: of the actions that `act` draws.

    Attributes:
        statistics: names of the scalars that `loss` returns, in order: TensorBoard's tags.
        observations: how observations reach the nets.
        actions: how the policy acts.
        normalizations: those in its nets.
        state_size: S, numbers that a recurrent net carries from step to step; 0 if it is not.
    """

    state_size = 0
    statistics: ClassVar[tuple[str, ...]]
    hyperparameters_type: ClassVar[type[Hyperparameters]]
    kinds: ClassVar[dict[str, type[Agent]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Agent.kinds[cls.__name__] = cls  # `load_agent` finds it by its name

    def __init__(
        self,
        nets: Mapping[str, keras.Model],
        observation_space: gym.Space,
        action_space: gym.Space,
        optimizer: keras.optimizers.Optimizer | None = None,
        hyperparameters: Any = None,
        seed: int = 0,
    ) -> None:
        self.nets = dict(nets)
        self.observation_space = observation_space
        self.action_space = action_space
        self.optimizer = optimizer or keras.optimizers.RMSprop(rho=0.99, epsilon=0.1)
        self.hyperparameters: Any = hyperparameters or self.hyperparameters_type()
        self.observations = Observations(observation_space)
        self.actions = actions_for(action_space)
        if self.observations.masked:
            _check_mask(self.observations.parts[-1], self.actions, action_space)
        self.normalizations = Normalizations(self.nets)
        self._seed = seed
        self._calls = 0
        self._act: dict[tuple[int, bool], CompiledFunction] = {}
        self._state: Tensor = None

    # The algorithm --------------------------------------------------------------------------

    @abstractmethod
    def distribution(
        self, observations: Sequence[Tensor], state: Tensor, starts: Tensor, exploration: Any
    ) -> tuple[Distribution, Tensor]:
        """What actions are drawn from, and the state for the next step. Part of a graph.

        Args:
            observations: [K, ...] for each of `Observations.parts`.
            state: of a recurrent net, [K, S].
            starts: 1 where the observation is the first of an episode, [K].
            exploration: a scalar from `exploration`; 0 in evaluation.

        Returns:
            The distribution, and the next state, [K, S].
        """

    @abstractmethod
    def loss(
        self, rollout: Rollout, exploration: Tensor | float
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """What is minimised, and the scalars named by `statistics`. Part of a graph.

        Args:
            rollout: T steps of K environments, with the weights that acted.
            exploration: the worker's, a scalar.

        Returns:
            A float32 scalar, and as many float32 scalars as there are `statistics`.
        """

    @abstractmethod
    def exploration(self, global_step: int, worker: int) -> float:
        """How much a worker explores at a global step, in the algorithm's own terms.

        Args:
            global_step: environment steps of all workers so far.
            worker: its index.
        """

    def after_steps(self, before: int, after: int) -> None:  # noqa: B027  (optional)
        """Called on the globals, under the lock, when the global step has risen.

        Args:
            before: the global step before.
            after: the global step now.
        """

    def values(self, observations: Sequence[Tensor], state: Tensor, starts: Tensor) -> Tensor:
        """What is expected from each of some observations on, [K]. Part of a graph; optional.

        In the units of the rewards that are learned. An agent that says it is shown with
        histograms of values and advantages.

        Args:
            observations: the parts, [K, ...] each.
            state: of recurrent nets, [K, S].
            starts: 1 where an episode begins, [K].

        Raises:
            NotImplementedError: this kind of agent does not say it.
        """
        raise NotImplementedError

    # Hyper-parameters -----------------------------------------------------------------------

    def scheduled(self, global_step: int) -> dict[str, float]:
        """The scheduled hyper-parameters at a global step, by name.

        Args:
            global_step: environment steps of all workers so far.
        """
        schedules = self.hyperparameters.schedules()
        return {name: schedule(global_step) for name, schedule in schedules.items()}

    def change(self, **values: float) -> None:
        """Sets scheduled hyper-parameters to a value each, from now on.

        In a global step hook this reaches all workers: `agent.change(learning_rate=1e-4)`.

        Args:
            values: by the names of the hyper-parameters.

        Raises:
            ValueError: it is none that can change, since the graphs have been built with it; or
                the value is not finite.
        """
        possible = self.hyperparameters.schedules()
        for name in values.keys() - possible:
            raise ValueError(f"{name} cannot be changed in a run; can: {', '.join(possible)}")
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} cannot be changed to {value}: it is not finite")
        constants = {name: Schedule.constant(float(value)) for name, value in values.items()}
        self.hyperparameters = replace(self.hyperparameters, **constants)

    # Nets ---------------------------------------------------------------------------------

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the nets, in an order that is the same for every clone."""
        return tf_variables([v for net in self.nets.values() for v in net.variables])

    @property
    def weights(self) -> list[tf.Variable]:
        """The variables that workers share: all but the state of random layers."""
        return tf_variables([v for net in self.nets.values() for v in net.weights])

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that gradients are computed for."""
        return [v for net in self.nets.values() for v in net.trainable_variables]

    def clone(self: AnyAgent) -> AnyAgent:
        """An agent with nets of its own and the same weights.

        The optimizer is the same object: it belongs to the global variables, and a clone only
        computes gradients.

        Raises:
            ValueError: Keras cannot copy a net.
        """
        with keras.saving.custom_object_scope(self.custom_objects()):
            nets = {name: _copied(name, net) for name, net in self.nets.items()}
        for name, net in self.nets.items():
            nets[name].set_weights(net.get_weights())
        return type(self)(
            **nets,
            observation_space=self.observation_space,
            action_space=self.action_space,
            optimizer=self.optimizer,
            hyperparameters=self.hyperparameters,
            seed=self._seed,
        )

    def custom_objects(self) -> dict[str, type]:
        """The classes of nets and of layers in them that are not Keras's, by their saved name."""
        kinds = {type(layer) for net in self.nets.values() for layer in all_layers(net)}
        ours = (kind for kind in kinds if not kind.__module__.startswith("keras."))
        return {keras.saving.get_registered_name(kind): kind for kind in ours}

    def learned_rewards(self, rewards: Tensor) -> Tensor:
        """The rewards that the loss is about, [T, K]: scaled and clipped, where that is asked for.

        Args:
            rewards: the environments' own, [T, K].
        """
        scale = self.nets.get(REWARD_SCALE)
        if scale is not None:
            rewards = tf.reshape(scale(tf.reshape(rewards, [-1])), rewards.shape)
        limit = self.hyperparameters.reward_clip
        return tf.clip_by_value(rewards, -limit, limit) if limit else rewards

    # Acting ---------------------------------------------------------------------------------

    def act(self, observation: Any, greedy: bool = False, start: bool = False) -> Any:
        """The action for one observation, as the environment takes it.

        Args:
            observation: one element of the observation space.
            greedy: the most likely action instead of a drawn one.
            start: whether the observation is the first of an episode, where a recurrent agent
                forgets what was before.
        """
        return self._act_on(self.observations.single(observation), greedy, [start])[0]

    def act_batch(
        self, observations: Any, greedy: bool = False, starts: Sequence[bool] | None = None
    ) -> npt.NDArray[Any]:
        """The actions for K environments; each new K compiles a graph of its own.

        Args:
            observations: as a vector environment returns them, [K, ...].
            greedy: the most likely actions instead of drawn ones.
            starts: which observations are the first of an episode, [K]; by default none.
        """
        count = len(keras.tree.flatten(observations)[0])
        arrays = self.observations.arrays(observations, count)
        return self._act_on(arrays, greedy, starts if starts is not None else [False] * count)

    def _act_on(self, arrays: Arrays, greedy: bool, starts: Sequence[bool]) -> npt.NDArray[Any]:
        count = len(starts)
        if self._state is None or len(self._state) != count:
            self._state = self.first_state(count)
        self._calls += 1
        seed = tf.constant([self._seed, self._calls], tf.int64)
        actions, self._state = self.compile_act(count, greedy)(
            seed,
            self._state,
            tf.constant(np.asarray(starts), tf.float32),
            *(tf.constant(array) for array in arrays),
        )
        taken: npt.NDArray[Any] = actions.numpy()
        return taken

    def observation_specs(self, *leading: int) -> list[tf.TensorSpec]:
        """What the observations' parts are in a graph: dtypes and shapes.

        Args:
            leading: the dimensions before those of one observation, such as K.
        """
        return [tf.TensorSpec(*layout) for layout in self.observations.layout(*leading)]

    def first_state(self, count: int) -> Tensor:
        """The state of a recurrent net at the start of K episodes, [K, S].

        Args:
            count: K.
        """
        return tf.zeros([count, self.state_size])

    def compile_act(self, count: int, greedy: bool = False) -> CompiledFunction:
        """The graph that acts in K environments.

        It goes from ([2] int64 seed, [K, S] state, [K] starts, and the observations' parts) to
        the environments' actions, [K, ...], and the next state.

        Call it in the main thread before others use the agent: tracing is not for threads.

        Args:
            count: K.
            greedy: the most likely actions instead of drawn ones.
        """
        key = (count, greedy)
        if key not in self._act:

            def act(
                seed: Tensor, state: Tensor, starts: Tensor, *observations: Tensor
            ) -> Sequence[Tensor]:
                distribution, state = self.distribution(observations, state, starts, 0.0)
                noise = self.actions.noise([count], seed)
                actions = distribution.mode() if greedy else distribution.sample(noise)
                return [self.actions.to_environment(actions), state]

            self._act[key] = CompiledFunction(
                act,
                [
                    tf.TensorSpec([2], tf.int64),
                    tf.TensorSpec([count, self.state_size], tf.float32),
                    tf.TensorSpec([count], tf.float32),
                    *self.observation_specs(count),
                ],
            )
        return self._act[key]

    # Saving ---------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Writes `agent.json` and a Keras file for each net.

        Args:
            directory: is made if it is not there.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, net in self.nets.items():
            net.save(directory / f"{name}.keras")
        description = {
            "format": FORMAT,
            "kind": type(self).__name__,
            "nets": list(self.nets),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "hyperparameters": asdict(self.hyperparameters),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
        }
        (directory / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def _copied(name: str, net: keras.Model) -> keras.Model:
    try:
        return keras.models.clone_model(net)
    except Exception as error:  # Keras raises all kinds
        reason = " ".join(str(error).split())
        raise ValueError(f"the net {name!r} cannot be copied for the workers: {reason}") from error


def _check_mask(mask: gym.Space, actions: Actions, action_space: gym.Space) -> None:
    needed = actions.mask_size
    if not needed or mask.shape != (needed,):
        what = f"shape {(needed,)}" if needed else "no mask: only Discrete and MultiDiscrete do"
        raise ValueError(f"the action_mask is {mask}, but {action_space} takes {what}")
