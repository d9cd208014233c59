"""Evaluation: whole episodes with fixed weights, several at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from a3c_tf.agents.base import Agent
from a3c_tf.envs.checks import check_finite, check_observations
from a3c_tf.envs.factory import MakeEnv, make_vector_env
from a3c_tf.envs.masks import check_masks
from a3c_tf.errors import at_the_end
from a3c_tf.graphs import Tensor
from a3c_tf.quiet import tf
from a3c_tf.signals import thread_stack

WHOSE = "evaluation environment"
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


class Step(NamedTuple):
    """One step of K evaluation environments, for who wants to look at it.

    Attributes:
        envs: the environments, as the step has left them.
        inputs: what was acted on: state, starts, and the observations' parts, [K, ...] each.
        actions: as the environments got them, [K, ...].
        rewards: [K].
        terminated: [K].
        valid: whether it took an action, [K].
        observations: the next ones, as the environments returned them.
        state: the next one, [K, S].
    """

    envs: VectorEnv
    inputs: Sequence[Tensor]
    actions: npt.NDArray[Any]
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    observations: Any
    state: Tensor


Observer = Callable[[Step], None]


class Evaluator:
    """Evaluates an agent on environments of its own.

    The graph is compiled in the constructor, in the main thread; `run` may be called by another.
    The agent's weights must not change during `run`: give it a clone of its own.

    Args:
        agent: acts with its weights of the moment.
        make_env: called with test=True, once for each environment.
        episodes: how many make one evaluation.
        seed: of the environments and of the actions drawn.
        greedy: the most likely actions instead of drawn ones.
        envs: how many are stepped at once; at most one for each episode.
        steps: in place of `episodes`, environment steps of one evaluation, in one environment.
        max_episode_len: steps after which an episode is truncated, or None.
        first: what `make_env` has returned already: one of the environments.
    """

    def __init__(
        self,
        agent: Agent,
        make_env: MakeEnv,
        episodes: int | None,
        seed: int = 0,
        greedy: bool = False,
        envs: int = 1,
        steps: int | None = None,
        max_episode_len: int | None = None,
        first: gym.Env | VectorEnv | None = None,
    ) -> None:
        self.agent = agent
        self.episodes = episodes
        self.steps = steps
        # Episodes begun but not finished in so many steps are dropped: with several environments
        # these would be the long ones.
        self.env_count = min(episodes, envs) if episodes else 1
        self._act = agent.compile_act(self.env_count, greedy)
        self._make_env = make_env
        self._first = first
        self._max_episode_len = max_episode_len
        self._envs: VectorEnv | None = None
        self._seed = seed
        self._thread = 0
        self.name = "evaluation"
        self.active = False
        self.beats = 0

    def run(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        number: int = 0,
        observer: Observer | None = None,
    ) -> Scores | None:
        """Runs the episodes; None if `should_stop` became true before they were over.

        Environments and actions are a function of the evaluator's seed and of `number`. An
        observer is shown every step.

        Which episodes count is fixed beforehand, the first n/K of each of the K environments,
        so that short episodes are not favoured. With `steps`, those that end in them, or the
        unfinished one if it is the only one.

        Raises:
            NotFiniteError: an observation or reward is; the text says of which environment.
            ValueError: an environment forbids all actions.
            Exception: the first one that an environment raised.
        """
        self._thread, self.active = threading.get_ident(), True
        try:
            return self._run(should_stop, number, observer)
        finally:
            self.active = False

    def for_one_episode(self, make_env: MakeEnv) -> Evaluator:
        """The same agent and seed in other environments, one episode at a time."""
        return Evaluator(self.agent, make_env, 1, self._seed, max_episode_len=self._max_episode_len)

    def stack(self) -> str:
        """Where the thread that evaluates is, as text."""
        return thread_stack(self._thread)

    def _run(
        self, should_stop: Callable[[], bool], number: int, observer: Observer | None
    ) -> Scores | None:
        env_seed, action_seed = np.random.SeedSequence([self._seed, number]).generate_state(2)
        envs = self._make_envs()
        observations, _ = envs.reset(seed=int(env_seed))
        # Never empty before the steps are done, where these decide.
        quota = np.full(self.env_count, self.steps or (self.episodes or 0) // self.env_count)
        quota[: (self.episodes or 0) % self.env_count] += 1
        state, starts = self.agent.first_state(self.env_count), np.ones(self.env_count, np.float32)
        returns, lengths = np.zeros(self.env_count), np.zeros(self.env_count, np.int64)
        resetting = np.zeros(self.env_count, np.bool_)
        scores: list[tuple[float, int]] = []
        taken, calls = 0, itertools.count()
        while quota.any() and taken != self.steps:
            if should_stop():
                return None
            self.beats += 1
            arrays = self.agent.observations.arrays(observations, self.env_count)
            check_observations(WHOSE, arrays)
            if self.agent.observations.masked:
                check_masks(envs, arrays[-1], resetting)
            inputs = [state, tf.constant(starts), *(tf.constant(array) for array in arrays)]
            seed = tf.constant([int(action_seed), next(calls)], tf.int64)
            drawn, state = self._act(seed, *inputs)
            actions = drawn.numpy()
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            rewards = np.where(resetting, 0.0, rewards)
            check_finite(f"reward of {WHOSE}", rewards)
            if observer is not None:
                observer(
                    Step(
                        envs, inputs, actions, rewards, terminated, ~resetting, observations, state
                    )
                )
            returns += rewards
            lengths += ~resetting
            taken += np.count_nonzero(~resetting)
            ended = terminated | truncated
            for k in np.flatnonzero((ended | (lengths >= MAX_EPISODE_STEPS)) & (quota > 0)):
                scores.append((returns[k], lengths[k]))
                quota[k] -= 1
            # An episode cut off by the limit goes on in its environment, as the next one.
            restart = ended | (lengths >= MAX_EPISODE_STEPS)
            returns[restart] = 0.0
            lengths[restart] = 0
            # What follows an episode that the limit cut off is another one for a recurrent net.
            starts = (resetting | (restart & ~ended)).astype(np.float32)
            resetting = ended
        if not scores:
            scores.append((returns[0], lengths[0]))
        all_returns, all_lengths = zip(*scores, strict=True)
        return Scores(np.array(all_returns), np.array(all_lengths))

    def close(self) -> None:
        """Closes the environments."""
        ours = [envs for envs in (self._envs, self._first) if envs is not None]
        self._envs = self._first = None
        self._thread, self.active = threading.get_ident(), True  # one may be stuck in it
        self.beats += 1
        try:
            with at_the_end(*(envs.close for envs in ours)):
                pass
        finally:
            self.active = False

    def _make_envs(self) -> VectorEnv:
        if self._envs is None:
            first, self._first = self._first, None
            self._envs = make_vector_env(
                self._make_env,
                0,
                self.env_count,
                True,
                self._max_episode_len,
                first,
                masked=self.agent.observations.masked,
            )
        return self._envs
