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
