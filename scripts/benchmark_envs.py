"""Environments of a known cost, for `scripts/benchmark.py --env benchmark_envs:NAME`.

- `PurePython-v0`: a step keeps the interpreter busy for 200 us of CPU time, like an environment
  written in Python.
- `Pixels-v0`: frames like those of Atari, [84, 84, 4] uint8, at no cost.
- `AtariPong-v0`: the Atari game with Gymnasium's preprocessing; needs ale-py and opencv.
"""

from __future__ import annotations

from time import thread_time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation

FRAMES_IN_ONE = 4
STEP_SECONDS = 200e-6
EPISODE_STEPS = 1000
FRAMES = 64


class PurePython(gym.Env[Any, Any]):
    """Spends CPU time with the interpreter lock held; the observations are noise."""

    observation_space = gym.spaces.Box(0.0, 1.0, (4,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self.np_random.random(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Is busy for a while."""
        end = thread_time() + STEP_SECONDS
        while thread_time() < end:
            pass
        self._step += 1
        observation = self.np_random.random(4, np.float32)
        return observation, 1.0, False, self._step == EPISODE_STEPS, {}


class Pixels(gym.Env[Any, Any]):
    """Shows frames of noise in turn."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (FRAMES, 84, 84, 4))
        self._frames = noise.astype(np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Shows the next frame."""
        self._step += 1
        frame = self._frames[self._step % FRAMES]
        return frame, 1.0, False, self._step == EPISODE_STEPS, {}


def make_pong() -> gym.Env[Any, Any]:
    """Pong as [84, 84, 4] uint8 of four grey frames, the last one last."""
    import ale_py

    gym.register_envs(ale_py)
    game = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    frames = FrameStackObservation(AtariPreprocessing(game), FRAMES_IN_ONE)
    space = gym.spaces.Box(0, 255, (84, 84, FRAMES_IN_ONE), np.uint8)
    return TransformObservation(frames, lambda stack: np.moveaxis(stack, 0, -1), space)


gym.register("AtariPong-v0", entry_point="benchmark_envs:make_pong")
gym.register("PurePython-v0", entry_point="benchmark_envs:PurePython")
gym.register("Pixels-v0", entry_point="benchmark_envs:Pixels")
