"""An environment is tried once before any worker exists, so that a mistake ends in one line."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from a3c_tf.envs.masks import MaskFromInfo, sample_action
from a3c_tf.observations import MASK, Observations


def name_of(env: Any) -> str:
    """The id of an environment, or the name of its class if it is not registered."""
    return getattr(getattr(env, "spec", None), "id", None) or type(env).__name__


def check_env(env: gym.Env | VectorEnv) -> tuple[gym.Space, gym.Space]:
    """Resets and steps an environment once, and says plainly what is wrong with it.

    Called in the main thread before any worker exists, so that a mistake ends in one line. The
    environment is as good as new after its next reset; it is closed if it is faulty.

    Returns:
        The observation space and the action space of one environment. If there are masks of
        actions in its infos only, the observation space is that of a `MaskFromInfo` around it.

    Raises:
        ValueError: it is no Gymnasium environment, or does not keep to its own spaces.
    """
    name = name_of(env)
    try:
        if isinstance(env, VectorEnv):
            if _masked_in_info(env.single_observation_space, env.reset(seed=0)[1]):
                raise ValueError(masks_inside(env))
            return env.single_observation_space, env.single_action_space
        if not isinstance(env, gym.Env):
            raise ValueError(f"{name} is a {type(env).__name__}, not a gymnasium.Env")
        result = env.reset(seed=0)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ValueError(
                f"{name}.reset returned {_shape_of(result)}; Gymnasium expects (observation, info)"
            )
        observation, info = result
        _check_info(name, "reset", info)
        check_observation(name, env.observation_space, observation)
        masker = MaskFromInfo(env) if _masked_in_info(env.observation_space, info) else None
        if masker:
            observation = masker.with_mask(observation, info)
        env.action_space.seed(0)
        step = _step(name, env, _some_action(name, env.action_space, observation))
        check_observation(name, env.observation_space, step[0])
        _check_info(name, "step", step[4])
        if masker:
            masker.with_mask(step[0], step[4])
        try:
            float(np.asarray(step[1]).item())
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}.step returned the reward {step[1]!r}, not a number"
            ) from error
        return (masker or env).observation_space, env.action_space
    except BaseException:
        with suppress(Exception):
            env.close()
        raise


def _masked_in_info(observation_space: gym.Space, info: dict[str, Any]) -> bool:
    return MASK in info and not Observations(observation_space).masked


def masks_inside(envs: VectorEnv) -> str:
    """What is wrong with a vector environment whose masks cannot be put into its observations."""
    return (
        f"{name_of(envs)} is a vector environment with an {MASK} in its infos, not in its "
        "observations; let make_env return one environment"
    )


def _some_action(name: str, space: gym.Space, observation: Any) -> Any:
    """A random action, an allowed one where the observation holds a mask."""
    if not (isinstance(observation, dict) and MASK in observation):
        return space.sample()
    try:
        return sample_action(space, np.asarray(observation[MASK]))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _step(name: str, env: gym.Env, action: Any) -> tuple[Any, ...]:
    step: Any
    try:
        step = env.step(action)
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


def _check_info(name: str, method: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise ValueError(f"{name}.{method} returned the info {info!r}, which is no dict")


def check_observation(name: str, space: gym.Space, observation: Any) -> None:
    """Looks whether an observation of the environment `name` fits into its space.

    Raises:
        ValueError: it does not; the text says how.
    """
    parts = Observations(space)
    try:
        parts.single(observation)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{name} returned an observation that is not in its observation space: {error}"
        ) from error


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
