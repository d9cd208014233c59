"""Evaluation: whole episodes with fixed weights, several at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from a3c_tf.agent import A3CAgent
from a3c_tf.envs.factory import MakeEnv, make_vector_env
from a3c_tf.envs.runner import observation_dtype
from a3c_tf.quiet import tf

MAX_ENVS = 20  # more at once gain little: the last episode is waited for anyway
MAX_EPISODE_STEPS = 27_000  # 30 minutes of an Atari game; ends what would never end


@dataclass
class Scores:
    """Undiscounted returns of evaluation episodes, on the environment's own rewards.

    Attributes:
        returns: one for each episode, float64.
        lengths: environment steps of each episode.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    def summary(self) -> dict[str, float]:
        """Mean, median, standard deviation (of the sample), max and min of the returns."""
        returns = self.returns
        return {
            "mean": float(returns.mean()),
            "median": float(np.median(returns)),
            "stdev": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "max": float(returns.max()),
            "min": float(returns.min()),
        }


class Evaluator:
    """Evaluates an agent on environments of its own.

    The graph is compiled in the constructor, in the main thread; `run` may be called by another.
    The agent's weights must not change during `run`: give it a clone of its own.

    Args:
        agent: acts with its weights of the moment.
        make_env: called with test=True.
        episodes: how many make one evaluation.
        seed: of the first reset and of the actions drawn.
        greedy: the most likely actions instead of drawn ones.
    """

    def __init__(
        self, agent: A3CAgent, make_env: MakeEnv, episodes: int, seed: int = 0, greedy: bool = False
    ) -> None:
        self.agent = agent
        self.episodes = episodes
        self.env_count = min(episodes, MAX_ENVS)
        self._act = agent.compile_act(self.env_count, greedy)
        self._make_env = make_env
        self._envs: VectorEnv | None = None
        self._seed = seed
        self._calls = 0

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Scores | None:
        """Runs the episodes; None if `should_stop` became true before they were over.

        Which episodes count is fixed beforehand, the first n/K of each of the K environments,
        so that short episodes are not favoured.
        """
        if self._envs is None:
            self._envs = make_vector_env(self._make_env, 0, self.env_count, test=True)
            observations, _ = self._envs.reset(seed=self._seed)
        else:
            observations, _ = self._envs.reset()
        quota = np.full(self.env_count, self.episodes // self.env_count)
        quota[: self.episodes % self.env_count] += 1
        dtype = observation_dtype(self.agent.observation_space)
        returns, lengths = np.zeros(self.env_count), np.zeros(self.env_count, np.int64)
        resetting = np.zeros(self.env_count, np.bool_)
        scores: list[tuple[float, int]] = []
        while quota.any():
            if should_stop():
                return None
            self._calls += 1
            actions = self._act(
                tf.constant(np.asarray(observations, dtype)),
                tf.constant([self._seed, self._calls], tf.int64),
            )[0].numpy()
            observations, rewards, terminated, truncated, _ = self._envs.step(actions)
            returns += np.where(resetting, 0.0, rewards)
            lengths += ~resetting
            ended = terminated | truncated
            for k in np.flatnonzero((ended | (lengths >= MAX_EPISODE_STEPS)) & (quota > 0)):
                scores.append((returns[k], lengths[k]))
                quota[k] -= 1
            # An episode cut off by the limit goes on in its environment, as the next one.
            restart = ended | (lengths >= MAX_EPISODE_STEPS)
            returns[restart] = 0.0
            lengths[restart] = 0
            resetting = ended
        all_returns, all_lengths = zip(*scores, strict=True)
        return Scores(np.array(all_returns), np.array(all_lengths))

    def close(self) -> None:
        """Closes the environments."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None
