"""From environment ids and user functions to checked vector environments."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from a3c_tf.envs.atari import FIXED, is_atari, make_atari, make_atari_vector
from a3c_tf.envs.masks import MaskFromInfo
from a3c_tf.envs.replay import Replayable
from a3c_tf.envs.trial import check_env, check_observation, masks_inside, name_of
from a3c_tf.errors import at_the_end, near
from a3c_tf.observations import Observations

# make_env(worker_index, test) -> one environment
MakeEnv = Callable[[int, bool], gym.Env]


class RegisteredEnv:
    """`make_env` for an id in Gymnasium's registry.

    Args:
        env_id: such as "CartPole-v1", "ALE/Pong-v5" or "my_package:MyEnv-v0".
        sticky_actions: of Atari games; see `make_atari`.
        arguments: of the environment itself, over those that it is registered with.

    Raises:
        ValueError: no such id; from the call, that what it needs is not installed, or that it
            cannot be made with these arguments.
    """

    def __init__(
        self, env_id: str, sticky_actions: bool = False, arguments: dict[str, Any] | None = None
    ) -> None:
        self.env_id = env_id
        self.sticky_actions = sticky_actions
        self.arguments = arguments or {}
        try:
            spec = _find(env_id)
        except (gym.error.Error, ImportError) as error:
            raise ValueError(_unknown_id(env_id, error)) from error
        self._spec = replace(spec, kwargs=spec.kwargs | self.arguments)
        self.atari = is_atari(self._spec)
        if sticky_actions and not self.atari:
            raise ValueError(f"sticky_actions is True, but {env_id} is no Atari game")
        for name in sorted(FIXED & self.arguments.keys()) if self.atari else ():
            raise ValueError(
                f"{name}={self.arguments[name]} is no argument of {env_id} here: all Atari games "
                "are seen alike (a3c_tf.envs.atari)"
            )

    def __call__(self, worker_index: int, test: bool) -> gym.Env:
        """One environment."""
        try:
            if self.atari:
                return make_atari(self._spec, self.sticky_actions)
            # The checker costs as much as a small environment; `check_env` has looked already.
            return gym.make(self._spec, disable_env_checker=True)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise ValueError(
                f"environment {self.env_id!r}: {' '.join(str(error).split())}"
            ) from error
        except Exception as error:
            if not self.arguments:
                raise
            given = " ".join(f"{name}={value}" for name, value in self.arguments.items())
            raise ValueError(
                f"environment {self.env_id!r} cannot be made with {given}: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error

    def rendered(self, render_mode: str) -> RegisteredEnv:
        """The same environments, but drawing themselves."""
        arguments = self.arguments | {"render_mode": render_mode}
        return RegisteredEnv(self.env_id, self.sticky_actions, arguments)

    def vector(self, count: int) -> VectorEnv | None:
        """`count` environments stepped by one call, natively; None if the id has no such."""
        if self.atari:
            return make_atari_vector(self._spec, count, self.sticky_actions)
        if self._spec.vector_entry_point is None or self.arguments:  # it may not take them
            return None
        envs = gym.make_vec(self._spec, count, vectorization_mode="vector_entry_point")
        if envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
            return envs
        envs.close()
        return None


def is_atari_id(env_id: str) -> bool:
    """Whether an id is that of an Atari game; False for one that does not exist."""
    try:
        return RegisteredEnv(env_id).atari
    except ValueError:
        return False


def make_vector_env(
    make_env: MakeEnv,
    worker_index: int,
    count: int,
    test: bool,
    max_episode_len: int | None = None,
    first: gym.Env | VectorEnv | None = None,
    replayable: bool = False,
    masked: bool = False,
) -> VectorEnv:
    """`count` environments as one vector environment that resets on the step after an end.

    Args:
        make_env: a `RegisteredEnv`, or any function that returns one environment a call. It
            may also return a vector environment of `count`, which is used as it is.
        worker_index: passed on to `make_env`.
        count: K.
        test: passed on to `make_env`: whether the environments are for evaluation.
        max_episode_len: steps after which an episode is truncated; None for no such limit.
        first: what `make_env` has returned already; it is used, or closed.
        replayable: whether each one is to be a `Replayable`.
        masked: whether the agent takes action masks; they come from `info` where the observation
            has none (`MaskFromInfo`).

    Raises:
        ValueError: a vector environment with another number of environments, or one that
            resets in another way, or one that was to be changed in its inside.
    """
    inside = max_episode_len is not None or replayable or masked
    if isinstance(make_env, RegisteredEnv) and not inside:
        native = make_env.vector(count)
        if native is not None:
            if first is not None:
                first.close()
            return native
    if first is None:
        first = make_env(worker_index, test)
    if not isinstance(first, VectorEnv):

        def wrap(env: gym.Env) -> gym.Env:
            if masked and not Observations(env.observation_space).masked:
                env = MaskFromInfo(env)
            plain = _Episodes(env, max_episode_len)
            return Replayable(plain) if replayable else plain

        return _one_by_one([first], lambda: make_env(worker_index, test), count, wrap)
    mode = first.metadata.get("autoreset_mode")
    if first.num_envs != count or mode != AutoresetMode.NEXT_STEP:
        first.close()
        raise ValueError(
            f"make_env returned a vector environment of {first.num_envs} in mode {mode}; needed "
            f"are {count} ({'eval_envs' if test else 'envs_per_worker'}) in mode "
            f"{AutoresetMode.NEXT_STEP}"
        )
    if replayable:
        first.close()
        raise ValueError("deterministic needs a make_env that returns one environment, not several")
    if max_episode_len is not None:
        first.close()
        raise ValueError(
            f"max_episode_len is {max_episode_len}, but make_env returned a vector environment, "
            "whose episodes cannot be cut from outside; let it return one environment"
        )
    if masked and not Observations(first.single_observation_space).masked:
        first.close()
        raise ValueError(masks_inside(first))
    return first


class _Episodes(gym.Wrapper):
    """Ends episodes that the environment itself does not; rewards as floats; checks shapes.

    An episode is truncated after `max_episode_len` steps, and where `info["needs_reset"]` is
    true, as in ChainerRL. (`SyncVectorEnv` refuses a reward that is an array of one element,
    and does not say what is wrong with an observation that fits in with no others.)
    """

    def __init__(self, env: gym.Env, max_episode_len: int | None) -> None:
        super().__init__(env)
        self._limit = math.inf if max_episode_len is None else max_episode_len
        self._shape = env.observation_space.shape  # None for a Dict or Tuple
        self._steps = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        observation, info = self.env.reset(**arguments)
        self._check(observation)
        return observation, info

    def _check(self, observation: Any) -> None:
        if self._shape is not None and np.shape(observation) != self._shape:
            check_observation(name_of(self.env), self.observation_space, observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._check(observation)
        self._steps += 1
        cut = truncated or self._steps >= self._limit or bool(info.get("needs_reset"))
        return observation, np.asarray(reward).item(), terminated, cut, info


class _OneByOne(SyncVectorEnv):
    @property
    def replayable(self) -> list[Replayable]:
        """The environments, where they were asked for as such."""
        return [env for env in self.envs if isinstance(env, Replayable)]

    def move_to(self, positions: list[dict[str, Any]], resetting: Any) -> Any:
        """Brings each `Replayable` to its position; returns the observations there."""
        self._autoreset_envs[:] = resetting
        there = [env.move_to(p) for env, p in zip(self.replayable, positions, strict=True)]
        space = self.single_observation_space
        together: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, there, together)

    def close_extras(self, **arguments: Any) -> None:
        """Closes all of them, also if one cannot be closed."""
        with at_the_end(*(env.close for env in self.envs)):
            pass


def _one_by_one(
    made: list[gym.Env],
    make: Callable[[], gym.Env],
    count: int,
    wrap: Callable[[gym.Env], gym.Env],
) -> VectorEnv:
    """`count` environments, those already made among them, stepped one after the other."""
    try:
        while len(made) < count:
            made.append(make())
        wrapped = (wrap(env) for env in made)
        # copy=False: the runner copies what it keeps
        return _OneByOne([lambda: next(wrapped)] * count, copy=False)
    except BaseException:  # those that were made are still ours to close
        for env in made:
            with suppress(Exception):
                env.close()
        raise


def spaces_of(make_env: MakeEnv) -> tuple[gym.Space, gym.Space]:
    """The observation space and the action space, from an environment made for that alone.

    Raises:
        ValueError: see `check_env`.
    """
    env = make_env(0, True)
    spaces = check_env(env)
    env.close()
    return spaces


def _find(env_id: str) -> gym.envs.registration.EnvSpec:
    """Imports `my_package:`, and finds the newest version of an id without one."""
    module, _, name = env_id.rpartition(":")
    if module:
        __import__(module)
    elif name not in gym.registry:
        with suppress(ImportError):  # registers its games; it is an extra
            gym.register_envs(importlib.import_module("ale_py"))
    return gym.spec(name)


def _unknown_id(env_id: str, error: Exception) -> str:
    # Gymnasium's own text may run over several lines.
    reason = " ".join(str(error).split())
    atari = ":" not in env_id and sys.modules.get("ale_py") is None
    advice = "; Atari games need: pip install 'a3c_tf[atari]'" if atari else ""
    return f"environment {env_id!r}: {reason}{near(env_id, gym.registry)}{advice}"
