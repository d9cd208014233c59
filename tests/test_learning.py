"""Small tasks that must be solved, one for each kind of space."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize(
    ("space", "score"),
    [
        (gym.spaces.Discrete(3, start=5), 0.99),
        (gym.spaces.MultiDiscrete([3, 2, 4], start=[0, -1, 7]), 0.97),
        (gym.spaces.MultiBinary(4), 0.97),
        (gym.spaces.Box(np.array([0.0, -5.0]), np.array([2.0, 10.0]), dtype=np.float64), 0.85),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, gym.Space) else "",
)
def test_action_that_is_wanted(tmp_path: Path, space: gym.Space, score: float) -> None:
    """Found in a few thousand steps; the environment refuses what is not in its space."""

    def make_env(index: int, test: bool) -> gym.Env:
        return MatchEnv(space)

    optimizer = keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5)
    settings = {"learning_rate": Schedule(0.03, 0.0, 60_000), "max_gradient_norm": 5.0}
    train_agent_async(
        tmp_path,
        2,
        make_env,
        agent=make_agent(MatchEnv(space), hidden_sizes=(16,), optimizer=optimizer, **settings),
        steps=60_000,
        eval_interval=3000,
        eval_n_episodes=60,
        eval_envs=20,
        successful_score=score,
        envs_per_worker=8,
        t_max=4,
    )
    agent = load_agent(tmp_path / "best")
    scores = Evaluator(agent, make_env, 60, seed=3, greedy=True, envs=20).run()
    assert scores is not None
    assert scores.summary()["mean"] >= score
