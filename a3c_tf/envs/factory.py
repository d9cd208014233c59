"""From environment ids and user functions to checked vector environments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from a3c_tf.errors import near

# make_env(worker_index, test) -> one environment
MakeEnv = Callable[[int, bool], gym.Env]


class RegisteredEnv:
    """`make_env` for an id in Gymnasium's registry.

    Args:
        env_id: such as "CartPole-v1" or "my_package:MyEnv-v0".

    Raises:
        ValueError: no such id; from the call, that what it needs is not installed.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        try:
            # Imports "my_package:", and finds the newest version of an id without one.
            self._spec = gym.spec(env_id) if ":" not in env_id else _import_and_find(env_id)
        except (gym.error.Error, ImportError) as error:
            raise ValueError(_unknown_id(env_id, error)) from error

    def __call__(self, worker_index: int, test: bool) -> gym.Env:
        """One environment."""
        # The checker costs as much as a small environment; `check_env` has looked already.
        try:
            return gym.make(self._spec, disable_env_checker=True)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise ValueError(
                f"environment {self.env_id!r}: {' '.join(str(error).split())}"
            ) from error

    def vector(self, count: int) -> VectorEnv:
        """`count` environments stepped by one call, natively where the id offers that."""
        if self._spec.vector_entry_point is not None:
            envs = gym.make_vec(self._spec, count, vectorization_mode="vector_entry_point")
            if envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
                return envs
            envs.close()
        return _one_by_one([self(0, False)], lambda: self(0, False), count)


def make_vector_env(make_env: MakeEnv, worker_index: int, count: int, test: bool) -> VectorEnv:
    """`count` environments as one vector environment that resets on the step after an end.

    Args:
        make_env: a `RegisteredEnv`, or any function that returns one environment a call. It
            may also return a vector environment of `count`, which is used as it is.
        worker_index: passed on to `make_env`.
        count: K.
        test: passed on to `make_env`: whether the environments are for evaluation.

    Raises:
        ValueError: a vector environment with another number of environments, or one that
            resets in another way.
    """
    if isinstance(make_env, RegisteredEnv):
        return make_env.vector(count)
    first = make_env(worker_index, test)
    if not isinstance(first, VectorEnv):
        return _one_by_one([first], lambda: make_env(worker_index, test), count)
    mode = first.metadata.get("autoreset_mode")
    if first.num_envs != count or mode != AutoresetMode.NEXT_STEP:
        first.close()
        raise ValueError(
            f"make_env returned a vector environment of {first.num_envs} in mode {mode}; "
            f"needed are {count} in mode {AutoresetMode.NEXT_STEP}"
        )
    return first


class _ScalarReward(gym.Wrapper):
    """Rewards as floats: `SyncVectorEnv` refuses an array of one element with NumPy 2."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, np.asarray(reward).item(), terminated, truncated, info


def _one_by_one(made: list[gym.Env], make: Callable[[], gym.Env], count: int) -> VectorEnv:
    """`count` environments, those already made among them, stepped one after the other."""
    try:
        while len(made) < count:
            made.append(make())
        wrapped = (_ScalarReward(env) for env in made)
        # copy=False: the runner copies what it keeps
        return SyncVectorEnv([lambda: next(wrapped)] * count, copy=False)
    except BaseException:  # those that were made are still ours to close
        for env in made:
            with suppress(Exception):
                env.close()
        raise


def check_env(make_env: MakeEnv) -> tuple[gym.Space, gym.Space]:
    """Makes one environment, resets and steps it, and says plainly what is wrong with it.

    Called in the main thread before any worker exists, so that a mistake ends in one line.

    Returns:
        The observation space and the action space of one environment.

    Raises:
        ValueError: it is no Gymnasium environment, or does not keep to its own spaces.
    """
    env = make_env(0, True)
    name = getattr(getattr(env, "spec", None), "id", None) or type(env).__name__
    try:
        if isinstance(env, VectorEnv):
            return env.single_observation_space, env.single_action_space
        if not isinstance(env, gym.Env):
            raise ValueError(f"{name} is a {type(env).__name__}, not a gymnasium.Env")
        result = env.reset(seed=0)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ValueError(
                f"{name}.reset returned {_shape_of(result)}; Gymnasium expects (observation, info)"
            )
        _check_observation(name, env.observation_space, result[0])
        env.action_space.seed(0)
        step = _step(name, env)
        _check_observation(name, env.observation_space, step[0])
        if np.size(step[1]) != 1 or not np.isreal(step[1]):
            raise ValueError(f"{name}.step returned the reward {step[1]!r}, not a number")
        return env.observation_space, env.action_space
    finally:
        if hasattr(env, "close"):
            env.close()


def _step(name: str, env: gym.Env) -> tuple[Any, ...]:
    step: Any
    try:
        step = env.step(env.action_space.sample())
    except ValueError as error:
        # Gymnasium's own wrappers unpack the five values before anything else can look.
        if "not enough values to unpack" not in str(error):
            raise
        step = (None,) * 4
    if not (isinstance(step, tuple) and len(step) == 5):
        raise ValueError(
            f"{name}.step returned {_shape_of(step)}, the old Gym interface; Gymnasium expects "
            "(observation, reward, terminated, truncated, info)"
        )
    return tuple(step)


def _check_observation(name: str, space: gym.Space, observation: Any) -> None:
    shape, expected = np.shape(observation), space.shape
    if expected is not None and shape != expected:
        raise ValueError(
            f"{name} returned an observation of shape {shape}, but its observation space "
            f"says {expected}"
        )


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"


def _import_and_find(env_id: str) -> gym.envs.registration.EnvSpec:
    module, _, name = env_id.partition(":")
    __import__(module)
    return gym.spec(name)


def _unknown_id(env_id: str, error: Exception) -> str:
    # Gymnasium's own text may run over several lines.
    reason = " ".join(str(error).split())
    return f"environment {env_id!r}: {reason}{near(env_id, gym.registry)}"
