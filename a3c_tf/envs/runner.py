"""Steps a vector environment for one worker, and counts steps and episodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

# Rows of `EnvRunner.signals`.
REWARD, TERMINATED, TRUNCATED, VALID = range(4)


@dataclass
class Episode:
    """One finished training episode.

    Attributes:
        episode_return: undiscounted sum of the environment's own rewards.
        length: environment steps.
    """

    episode_return: float
    length: int


class EnvRunner:
    """Steps K environments as one vector environment, called from inside the worker's graph.

    An exception must not pass through TensorFlow, which would turn it into an error of its own
    with the text only. So the first one is kept in `error`, and from then on (as also when the
    run is to stop) the environments are not stepped any more: the graph runs to its end on the
    last observation, and the worker then throws the rollout away.

    Args:
        envs: K environments in the mode `AutoresetMode.NEXT_STEP`.
        t_max: steps of a rollout.
        seed: of the first reset.
        should_stop: asked before every step whether the run is over.

    Attributes:
        error: the first exception that an environment raised, or None.
        interrupted: whether the current rollout has been cut short.
        total_steps: valid steps since the start.
        env_seconds: time spent in the environments during the current rollout.
        rollout_seconds: time from the rollout's first to its last step.
        finished: how many episodes ended in the current rollout.
    """

    def __init__(
        self,
        envs: gym.vector.VectorEnv,
        t_max: int,
        seed: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.envs = envs
        self.error: BaseException | None = None
        self.interrupted = False
        self.total_steps = 0
        self.env_seconds = 0.0
        self.rollout_seconds = 0.0
        self.finished = 0
        self._t_max = t_max
        self._seed = seed
        self._should_stop = should_stop
        self._lock = threading.Lock()  # the monitor takes the episodes while the worker adds
        self._episodes: list[Episode] = []
        space = envs.single_observation_space
        self._dtype = observation_dtype(space)
        shape = (envs.num_envs, *(space.shape or ()))
        self._observation = np.zeros(shape, self._dtype)
        self._signals = np.zeros((4, t_max, envs.num_envs), np.float32)
        self._t = 0
        self._ended = np.zeros(envs.num_envs, np.bool_)
        self._returns = np.zeros(envs.num_envs, np.float64)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._started = False
        self._rollout_start = 0.0

    def begin_rollout(self) -> npt.NDArray[Any]:
        """The observation that the next rollout starts from, [K, ...]; resets at first."""
        self._t = 0
        self.env_seconds = 0.0
        self.interrupted = False
        self.finished = 0
        self._signals = np.zeros_like(self._signals)
        if not self._started:
            self._guarded(self._reset)
        self._rollout_start = perf_counter()
        return self._observation

    def step(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Takes one action in each environment; returns the next observations, [K, ...]."""
        if self.error is not None or self._should_stop():
            self.interrupted = True
        else:
            start = perf_counter()
            self._guarded(lambda: self._step(actions))
            now = perf_counter()
            self.env_seconds += now - start
            self.rollout_seconds = now - self._rollout_start
        return self._observation

    def signals(self) -> npt.NDArray[np.float32]:
        """What the rollout's steps gave: reward, terminated, truncated, valid, [4, T, K]."""
        return self._signals

    def valid_steps(self) -> int:
        """The number of steps of the current rollout in which an action was taken."""
        return int(self._signals[VALID].sum())

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call. May be called by any thread."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # also SystemExit: it is the environment's, not ours
            self.error = error
            self.interrupted = True

    def _reset(self) -> None:
        observation, _ = self.envs.reset(seed=self._seed)
        self._started = True
        self._keep(observation)

    def _step(self, actions: npt.NDArray[Any]) -> None:
        observation, rewards, terminated, truncated, _ = self.envs.step(actions)
        self._keep(observation)
        valid = ~self._ended
        signals = self._signals[:, self._t]
        signals[REWARD] = rewards
        signals[TERMINATED] = terminated
        signals[TRUNCATED] = truncated & ~terminated  # both: the episode came to its own end
        signals[VALID] = valid
        self._t += 1
        self.total_steps += np.count_nonzero(valid)
        self._returns += rewards
        self._lengths += valid
        self._ended = terminated | truncated
        if self._ended.any():
            self._finish_episodes()

    def _keep(self, observation: Any) -> None:
        # A copy: some environments go on writing into the array that they returned.
        kept = np.array(observation, dtype=self._dtype)
        if kept.shape != self._observation.shape:
            raise ValueError(
                f"the environments returned observations of shape {kept.shape}, but their "
                f"observation space says {self._observation.shape}"
            )
        self._observation = kept

    def _finish_episodes(self) -> None:
        self.finished += np.count_nonzero(self._ended)
        with self._lock:
            for k in np.flatnonzero(self._ended):
                self._episodes.append(Episode(float(self._returns[k]), int(self._lengths[k])))
        self._returns[self._ended] = 0.0
        self._lengths[self._ended] = 0


def observation_dtype(space: gym.Space) -> np.dtype[Any]:
    """The dtype in which observations of a space reach the nets.

    Images (uint8) stay bytes up to the net, which scales them once; everything else is cast to
    float32, once.
    """
    return np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
