"""Masks of actions that are forbidden for the moment, as environments report them in `info`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import VectorEnv

from a3c_tf.observations import MASK

Mask = npt.NDArray[np.int8]  # 1 for each action that is allowed


class MaskFromInfo(gym.Wrapper):
    """Puts `info["action_mask"]` into the observation, where the policy finds it.

    The observation becomes {"observation": what it was, "action_mask": [n] of 0 and 1}, n the
    number of actions. For MultiDiscrete n is that of all choices, one choice after the other; the
    environment may then report a tuple of masks, as `MultiDiscrete.sample` takes it. Where there is
    no mask in `info`, as some environments leave it out at the end, everything is allowed.

    Raises:
        ValueError: actions that are neither Discrete nor MultiDiscrete; in `reset` and `step`, a
            mask of another length.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, Discrete | MultiDiscrete):
            raise ValueError(f"{env.unwrapped} has an {MASK} for actions {env.action_space}")
        self._size = sum(_choices(env.action_space))
        self.observation_space = Dict(
            {"observation": env.observation_space, MASK: MultiBinary(self._size)}
        )

    def reset(self, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode."""
        observation, info = self.env.reset(**arguments)
        return self.with_mask(observation, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.with_mask(observation, info), reward, terminated, truncated, info

    def with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        """The observation of this wrapper's space."""
        reported = info.get(MASK)
        mask = np.ones(self._size, np.int8) if reported is None else _flat(reported)
        if len(mask) != self._size:
            raise ValueError(
                f"{self.env.unwrapped} has an {MASK} of length {len(mask)} for {self._size} actions"
            )
        return {"observation": observation, MASK: mask}


def sample_action(space: gym.Space, mask: Mask) -> Any:
    """A random one of the allowed actions; any, where nothing is allowed, as in the policy.

    Args:
        space: Discrete or MultiDiscrete.
        mask: as in the observations of `MaskFromInfo`.

    Raises:
        ValueError: another kind of space, or a mask of another length.
    """
    if not isinstance(space, Discrete | MultiDiscrete) or len(mask) != sum(_choices(space)):
        raise ValueError(f"an {MASK} of length {len(mask)} is no mask for actions {space}")
    masks = np.split(mask, np.cumsum(_choices(space))[:-1])
    drawn = [space.np_random.choice(np.flatnonzero(one == one.max())) for one in masks]
    return np.reshape(drawn, space.shape or ()).astype(space.dtype)[()] + space.start


def check_masks(envs: VectorEnv, masks: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
    """Looks whether each of K environments allows an action, for every choice.

    Args:
        envs: the environments.
        masks: of their observations, [K, n].
        ended: where the observation is an episode's last one, which may forbid everything, [K].

    Raises:
        ValueError: one does not; the text says which.
    """
    actions: Any = envs.single_action_space
    first = np.cumsum([0, *_choices(actions)[:-1]])
    possible = np.logical_or.reduceat(masks != 0, first, axis=1).all(axis=1)
    for k in np.flatnonzero(~possible & ~ended):
        env = getattr(envs, "envs", [envs] * len(masks))[k].unwrapped
        raise ValueError(f"environment {k}, {env}, forbids all actions, but has not ended")


def _choices(space: Discrete | MultiDiscrete) -> list[int]:
    """How many actions each choice is between."""
    sizes: list[int] = np.ravel(space.n if isinstance(space, Discrete) else space.nvec).tolist()
    return sizes


def _flat(mask: Any) -> Mask:
    if isinstance(mask, tuple):
        return np.concatenate([_flat(part) for part in mask])
    return np.not_equal(np.ravel(mask), 0).astype(np.int8)
