"""Small tasks that must be solved, one for each kind of space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.agents.loading import load_agent
from a3c_tf.evaluation import Evaluator
from a3c_tf.quiet import keras
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import MatchEnv
from tests.helpers import make_agent

STEPS = 30_000


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=5),
        gym.spaces.MultiDiscrete([3, 2, 4], start=[0, -1, 7]),
        gym.spaces.MultiBinary(4),
        gym.spaces.Box(np.array([0.0, -5.0]), np.array([2.0, 10.0]), dtype=np.float64),
    ],
    ids=lambda space: type(space).__name__,
)
def test_action_that_is_wanted(tmp_path: Path, space: gym.Space) -> None:
    """Found, or within 5 %; the environment refuses what is not in its space."""

    def make_env(index: int, test: bool) -> gym.Env:
        return MatchEnv(space)

    agent = make_agent(
        MatchEnv(space),
        hidden_sizes=(16,),
        optimizer=keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        learning_rate=Schedule(0.01, 0.0, STEPS),
        entropy_coefficient=Schedule.constant(0.02),
        max_gradient_norm=5.0,
    )
    train_agent_async(
        tmp_path,
        2,
        make_env,
        agent=agent,
        steps=STEPS,
        eval_interval=None,
        envs_per_worker=8,
        t_max=4,
    )
    (saved,) = tmp_path.glob("*_finish")
    scores = Evaluator(load_agent(saved), make_env, 60, greedy=True, envs=20).run()
    assert scores is not None
    assert scores.summary()["mean"] >= 0.95


class ShownEnv(gym.Env[Any, np.int64]):
    """Shows in one part of the observation which of three actions is worth 1.

    Where there is a mask, it forbids one of the other two, and the environment insists on that.

    Args:
        space: with a Discrete(3) that shows it, and perhaps an `action_mask`.
    """

    action_space = gym.spaces.Discrete(3)

    def __init__(self, space: gym.Space) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins four steps."""
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        assert self._mask[action], "a forbidden action"
        self._steps += 1
        reward = float(action == self._wanted)
        return self._show(), reward / 4, self._steps == 4, False, {}

    def _show(self) -> Any:
        self._wanted = int(self.np_random.integers(3))
        self._mask = np.ones(3, np.int8)
        noise = self.np_random.random(2, np.float32)
        if isinstance(self.observation_space, gym.spaces.Tuple):
            return noise, self._wanted
        if "action_mask" not in self.observation_space.spaces:  # type: ignore[attr-defined]
            return {"noise": noise, "shown": {"deep": self._wanted}}
        self._mask[(self._wanted + self.np_random.integers(1, 3)) % 3] = 0
        return {"noise": noise, "shown": self._wanted, "action_mask": self._mask}


NOISE, SHOWN = gym.spaces.Box(0.0, 1.0, (2,)), gym.spaces.Discrete(3)


@pytest.mark.parametrize(
    ("space", "backend"),
    [
        (gym.spaces.Tuple((NOISE, SHOWN)), "threads"),
        (gym.spaces.Dict(noise=NOISE, shown=gym.spaces.Dict(deep=SHOWN)), "threads"),
        (
            gym.spaces.Dict(noise=NOISE, shown=SHOWN, action_mask=gym.spaces.MultiBinary(3)),
            "processes",
        ),
    ],
    ids=["tuple", "dict", "masked"],
)
def test_what_is_shown(tmp_path: Path, space: gym.Space, backend: Any) -> None:
    """One part of the observation matters; a forbidden action is never taken."""

    def make_env(index: int, test: bool) -> gym.Env:
        return ShownEnv(space)

    agent = make_agent(
        ShownEnv(space),
        hidden_sizes=(16,),
        optimizer=keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5),
        learning_rate=Schedule(0.01, 0.0, STEPS),
        max_gradient_norm=5.0,
    )
    train_agent_async(
        tmp_path,
        2,
        make_env,
        agent=agent,
        steps=STEPS,
        eval_interval=None,
        envs_per_worker=8,
        backend=backend,
    )
    (saved,) = tmp_path.glob("*_finish")
    scores = Evaluator(load_agent(saved), make_env, 60, envs=20).run()
    assert scores is not None
    assert scores.summary()["mean"] >= 0.95
