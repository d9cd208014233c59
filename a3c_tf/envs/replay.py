"""Brings an environment to where another one was, by its random numbers and its actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Replayable(gym.Wrapper):
    """Remembers how the episode came about, in plain values that JSON can hold.

    An environment can be brought to the same place if all that it draws comes from the generator
    that Gymnasium gives it, `np_random`, or from the seed of its last reset.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._generator: dict[str, Any] | None = None
        self._actions: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._seed = seed
        self._generator = None
        if seed is None:
            self._generator = dict(self.unwrapped.np_random.bit_generator.state)
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        self._actions.append(np.asarray(action).tolist())
        return self.env.step(action)

    def position(self) -> dict[str, Any]:
        """How to come here: a seed or a generator's state, and the actions since the reset."""
        return {"seed": self._seed, "generator": self._generator, "actions": self._actions}

    def move_to(self, position: dict[str, Any]) -> Any:
        """Goes to a position; returns the observation there."""
        if position["generator"] is not None:
            self.unwrapped.np_random.bit_generator.state = position["generator"]
        observation, _ = self.reset(seed=position["seed"])
        for action in position["actions"]:
            observation, *_ = self.step(np.asarray(action, self.action_space.dtype)[()])
        return observation
