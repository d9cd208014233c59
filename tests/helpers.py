"""What several test files need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import SyncVectorEnv

from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
from a3c_tf.agents.learning import Rollout
from a3c_tf.config import TrainConfig
from a3c_tf.graphs import Tensor
from a3c_tf.networks import build_actor_critic
from a3c_tf.normalization import build_reward_scale
from a3c_tf.quiet import keras, tf
from a3c_tf.run_directory import write_config
from a3c_tf.telemetry import SUMMARY, ScoreLog, write_summary

# Options of `make_agent` with which everything is there that goes on from rollout to rollout.
STATEFUL: dict[str, Any] = {"nets": {"lstm": True, "normalize": True}, "scale_rewards": True}


def vector(*envs: gym.Env) -> SyncVectorEnv:
    """Environments as one vector environment, which resets on the step after an end.

    It writes its observations into one and the same array.
    """
    remaining = list(envs)
    return SyncVectorEnv([lambda: remaining.pop(0)] * len(envs), copy=False)


def make_agent(
    env: gym.Env,
    hidden_sizes: Sequence[int] = (),
    optimizer: keras.optimizers.Optimizer | None = None,
    seed: int = 0,
    nets: Mapping[str, Any] | None = None,
    scale_rewards: bool = False,
    **hyperparameters: Any,
) -> A3CAgent:
    """An agent for an environment: linear nets, unless hidden layers are asked for.

    Args:
        env: whose spaces it is for.
        hidden_sizes: of the nets.
        optimizer: see `Agent`.
        seed: of weights and actions.
        nets: further arguments of `build_actor_critic`.
        scale_rewards: in units of the spread of their discounted sum.
        hyperparameters: of `A3CHyperparameters`.
    """
    model = build_actor_critic(
        env.observation_space,
        env.action_space,
        hidden_sizes=hidden_sizes,
        seed=seed,
        **(nets or {}),
    )
    return A3CAgent(
        model,
        env.observation_space,
        env.action_space,
        optimizer,
        A3CHyperparameters(**hyperparameters),
        seed,
        build_reward_scale() if scale_rewards else None,
    )


def stop_after(iterations: int) -> Callable[[], bool]:
    """A `should_stop` for `Worker.run` that allows so many iterations."""
    calls = iter(range(iterations))
    return lambda: next(calls, None) is None


class Push(NamedTuple):
    """What a worker gave to `Connection.exchange`, or to `count`, then without a gradient."""

    gradient: npt.NDArray[np.float32]
    steps: int
    episodes: int


class RecordingConnection:
    """Stands where a worker has its `Connection`: keeps the pushes and changes no weights."""

    def __init__(self, exploration: float = 0.0) -> None:
        self.step = 0
        self.version = 0
        self.lag = 0
        self.exploration = exploration
        self.waited = 0.0
        self.env: Any = None
        self.pushes: list[Push] = []

    def pull(self) -> None:
        """Leaves the local weights as they are."""

    def exchange(self, gradient: Tensor, steps: int, episodes: int) -> None:
        """Keeps what was pushed."""
        self.pushes.append(Push(np.array(gradient), steps, episodes))

    def count(self, steps: int, episodes: int) -> None:
        """Keeps what was counted."""
        self.pushes.append(Push(np.zeros(0, np.float32), steps, episodes))


def rollout_of(observations: Any, *arrays: Any) -> Rollout:
    """A rollout of an agent whose nets are not recurrent.

    Args:
        observations: [T + 1, K, ...].
        arrays: actions, rewards, terminated, truncated and valid, [T, K].
    """
    envs = observations.shape[1]
    nothing = tf.zeros_like(arrays[1]), tf.zeros([envs, 0]), tf.zeros(observations.shape[:2])
    return Rollout([tf.constant(observations)], *map(tf.constant, arrays), *nothing)


def write_run(
    directory: Path,
    means: Sequence[float] = (),
    stopped_by: str | None = None,
    interval: int = 1000,
    **settings: Any,
) -> Path:
    """A run directory, written as a run writes it: an evaluation every `interval` steps.

    Args:
        directory: where.
        means: scores of the evaluations; each is a minute after the one before.
        stopped_by: for a summary, if there is one.
        interval: steps from evaluation to evaluation.
        settings: those that are not the default.
    """
    directory.mkdir(parents=True)
    write_config(directory, TrainConfig(**settings))
    log = ScoreLog(directory, ["loss/policy"])
    for count, mean in enumerate(means, start=1):
        row = dict.fromkeys(SUMMARY, mean) | {"stdev": 0.5}
        log.append(row | {"steps": interval * count, "episodes": count, "elapsed": 60.0 * count})
    if stopped_by:
        counts = {"steps": interval * len(means) + 7, "seconds": 60.0 * len(means) + 30}
        write_summary(directory, counts | {"stopped_by": stopped_by})
    return directory
