"""Steps a vector environment for one worker, and counts steps and episodes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from a3c_tf.envs.checks import check_finite, check_observations
from a3c_tf.envs.masks import check_masks
from a3c_tf.observations import Arrays, Observations

# Rows of what `EnvRunner.finish_rollout` returns.
REWARD, TERMINATED, TRUNCATED, VALID, DISCOUNTED = range(5)


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
        t_max: T, steps of a rollout.
        seed: of the first reset.
        should_stop: asked before every step whether the run is over.
        observations: how the nets see them; by default, by the environments' own space.
        discount: of the discounted returns so far that are reported; None: they are not.

    Attributes:
        starts: 1 where the current observation is the first of an episode, [K] float32.
        error: the first exception that an environment raised, or None.
        interrupted: whether the current rollout has been cut short.
        steps: valid steps of the current rollout, once it is finished.
        episodes: how many episodes ended in the current rollout, once it is finished.
        env_seconds: time spent in the environments during the current rollout.
        rollout_seconds: time from the current rollout's beginning to its last step.
    """

    def __init__(
        self,
        envs: Any,
        t_max: int,
        seed: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        observations: Observations | None = None,
        discount: float | None = None,
    ) -> None:
        self.envs = envs
        self.error: BaseException | None = None
        self.interrupted = False
        self.steps = 0
        self.episodes = 0
        self.env_seconds = 0.0
        self.rollout_seconds = 0.0
        self._seed = seed
        self._should_stop = should_stop
        self._lock = threading.Lock()  # the monitor takes the episodes while the worker adds
        self._finished: list[Episode] = []
        self.starts = np.ones(envs.num_envs, np.float32)
        self._space = observations or Observations(envs.single_observation_space)
        self._observations: Arrays = [
            np.zeros(shape, dtype) for shape, dtype in self._space.layout(envs.num_envs)
        ]
        self._discount = discount
        self._discounted = np.zeros(envs.num_envs, np.float64)
        self._rewards = np.zeros((t_max, envs.num_envs), np.float64)
        self._terminated = np.zeros((t_max, envs.num_envs), np.bool_)
        self._truncated = np.zeros((t_max, envs.num_envs), np.bool_)
        self._life_lost = np.zeros((t_max, envs.num_envs), np.bool_)
        self._t = 0
        self._resetting = np.zeros(envs.num_envs, np.bool_)
        self._returns = np.zeros(envs.num_envs, np.float64)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._started = False
        self._rollout_start = 0.0

    def begin_rollout(self) -> Arrays:
        """The observations that the next rollout starts from, [K, ...]; resets at first."""
        self._t = 0
        self.env_seconds = 0.0
        self.rollout_seconds = 0.0
        self.interrupted = False
        self._rollout_start = perf_counter()
        if not self._started:
            self._guarded(self._reset)
        return self._observations

    def step(self, actions: npt.NDArray[Any]) -> Arrays:
        """Takes one action in each environment; returns the next observations, [K, ...]."""
        if self.error is not None or self._should_stop():
            self.interrupted = True
            return self._observations
        start = perf_counter()
        self._guarded(self._step, actions)
        now = perf_counter()
        self.env_seconds += now - start
        self.rollout_seconds = now - self._rollout_start
        return self._observations

    def finish_rollout(self) -> npt.NDArray[np.float32]:
        """Counts the rollout; returns its signals, [5, T, K].

        They are reward, terminated, truncated, valid, and the discounted return so far.

        Where a vector environment says terminated and truncated at once, the episode came to
        its own end. A lost life (`info["life_lost"]`) is an end for what is learned, but the
        episode goes on. A step is valid unless it is the reset that follows an episode's end:
        that one took no action.
        """
        ended = self._terminated | self._truncated
        valid = np.empty_like(ended)
        valid[0] = ~self._resetting
        valid[1:] = ~ended[:-1]
        signals = np.zeros((5, *ended.shape), np.float32)
        rewards = np.where(valid, self._rewards, 0.0)
        self._guarded(self._check_rewards, rewards)
        signals[REWARD] = rewards
        signals[TERMINATED] = self._terminated | self._life_lost
        signals[TRUNCATED] = self._truncated & ~self._terminated
        signals[VALID] = valid
        # The rows of steps that were not taken any more are those of an earlier rollout.
        rewards, ended, valid = rewards[: self._t], ended[: self._t], valid[: self._t]
        if self._discount is not None:
            signals[DISCOUNTED, : self._t] = self._discounted_returns(rewards, ended)
        self._count(rewards, ended, valid)
        if self._t:
            self._resetting = ended[-1]
        return signals

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call. May be called by any thread."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def state(self) -> dict[str, Any]:
        """Where `Replayable` environments are between two rollouts, as plain values."""
        return {
            "positions": [env.position() for env in self.envs.replayable]
            if self._started
            else None,
            "resetting": self._resetting.tolist(),
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "discounted": self._discounted.tolist(),
            "starts": self.starts.tolist(),
            "observation": _checksum(self._observations),
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Goes where another runner was; whether the observations there are the same."""
        if state["positions"] is None:
            return True
        self._resetting[:] = state["resetting"]
        self._returns[:] = state["returns"]
        self._lengths[:] = state["lengths"]
        self._discounted[:] = state["discounted"]
        self._keep(self.envs.move_to(state["positions"], self._resetting))
        self.starts = np.array(state["starts"], np.float32)
        self._started = True
        return _checksum(self._observations) == state["observation"]

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except BaseException as error:  # also SystemExit: it is the environment's, not ours
            self.error = error
            self.interrupted = True

    def _reset(self) -> None:
        observation, _ = self.envs.reset(seed=self._seed)
        self._started = True
        self._keep(observation)
        self._check_masks(np.zeros_like(self._resetting))
        self.starts = np.ones_like(self.starts)

    def _step(self, actions: npt.NDArray[Any]) -> None:
        observation, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._keep(observation)
        self._check_masks(np.logical_or(terminated, truncated))
        t = self._t - 1
        reset = self._terminated[t] | self._truncated[t] if self._t else self._resetting
        self.starts = reset.astype(np.float32)
        self._rewards[self._t] = rewards
        self._terminated[self._t] = terminated
        self._truncated[self._t] = truncated
        self._life_lost[self._t] = infos.get("life_lost", False)
        self._t += 1

    def _keep(self, observation: Any) -> None:
        kept = self._space.arrays(observation, len(self.starts))
        check_observations("environment", kept)
        self._observations = kept

    def _check_masks(self, ended: npt.NDArray[np.bool_]) -> None:
        if self._space.masked:
            check_masks(self.envs, self._observations[-1], ended)

    def _discounted_returns(
        self, rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """G_t = r_t + discount * G_{t-1}, from 0 in every episode."""
        returns = np.empty_like(rewards)
        for t, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
            self._discounted = reward + (self._discount or 0.0) * self._discounted
            returns[t] = self._discounted
            self._discounted = np.where(end, 0.0, self._discounted)
        return returns

    def _check_rewards(self, rewards: npt.NDArray[np.float64]) -> None:
        check_finite("reward of environment", rewards[: self._t].T)

    def _count(
        self,
        rewards: npt.NDArray[np.float64],
        ended: npt.NDArray[np.bool_],
        valid: npt.NDArray[np.bool_],
    ) -> None:
        self.steps = int(np.count_nonzero(valid))
        self.episodes = int(np.count_nonzero(ended))
        if not self.episodes:  # most rollouts: nothing to cut
            self._returns += rewards.sum(axis=0)
            self._lengths += valid.sum(axis=0)
            return
        finished = []
        for reward, end, took_action in zip(rewards, ended, valid, strict=True):
            self._returns += reward
            self._lengths += took_action
            for k in np.flatnonzero(end):
                finished.append(Episode(float(self._returns[k]), int(self._lengths[k])))
                self._returns[k] = 0.0
                self._lengths[k] = 0
        with self._lock:
            self._finished += finished


def _checksum(arrays: Arrays) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
