"""Properties that hold for whatever comes: episodes, returns, spaces."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from a3c_tf.actions import actions_for
from a3c_tf.envs.runner import REWARD, TERMINATED, TRUNCATED, VALID, EnvRunner
from a3c_tf.envs.spaces import space_from_json, space_to_json
from a3c_tf.quiet import tf
from a3c_tf.returns import advantages_and_returns
from tests.helpers import make_agent, vector

settings.register_profile("here", deadline=None, max_examples=60)
settings.load_profile("here")


class Episode(NamedTuple):
    """An episode as it is going to be."""

    rewards: list[float]
    terminated: bool
    truncated: bool


class Scripted(gym.Env[Any, Any]):
    """Plays given episodes, over and over; an observation is the number of the moment."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, episodes: list[Episode]) -> None:
        self.history: list[tuple[float, float, bool, bool, float]] = []
        self._episodes = episodes
        self._episode = -1
        self._moment = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts the next episode."""
        self._episode = (self._episode + 1) % len(self._episodes)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        before = self._moment
        episode = self._episodes[self._episode]
        reward = episode.rewards[self._step]
        self._step += 1
        ended = self._step == len(episode.rewards)
        flags = ended and episode.terminated, ended and episode.truncated
        observation = self._observe()
        self.history.append((before, reward, *flags, self._moment))
        return observation, reward, *flags, {}

    def _observe(self) -> Any:
        self._moment += 1
        return np.array([self._moment], np.float32)


numbers = st.integers(-8, 8).map(float)
endings = st.sampled_from([(True, False), (False, True), (True, True)])
episodes = st.builds(
    lambda rewards, ending: Episode(rewards, *ending),
    st.lists(numbers, min_size=1, max_size=6),
    endings,
)


def value(moment: float) -> float:
    """Some function of the observation that stands for the value net."""
    return float(np.sin(moment) * 3.0)


def reference(
    steps: list[tuple[float, float, bool, bool, float]], gamma: float, gae_lambda: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one environment's valid steps of a rollout, by definition."""
    advantages: list[float] = []
    following = 0.0
    for moment, reward, terminated, truncated, next_moment in reversed(steps):
        if terminated or truncated:
            following = 0.0
        bootstrap = 0.0 if terminated else gamma * value(next_moment)
        following = reward + bootstrap - value(moment) + gamma * gae_lambda * following
        advantages.insert(0, following)
    return advantages, [a + value(step[0]) for a, step in zip(advantages, steps, strict=True)]


@given(
    st.lists(st.lists(episodes, min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 7),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_returns_of_any_episodes(
    scripts: list[list[Episode]], t_max: int, gamma: float, gae_lambda: float
) -> None:
    """What the runner hands on gives the advantages and returns of the steps really taken."""
    envs = [Scripted(script) for script in scripts]
    runner = EnvRunner(vector(*envs), t_max)
    returned, lengths = [], []
    for _ in range(4):
        before = [len(env.history) for env in envs]
        observations = [runner.begin_rollout()[0]]
        observations += [runner.step(np.zeros(len(envs), np.int64))[0] for _ in range(t_max)]
        signals = runner.finish_rollout()
        values = np.vectorize(value)(np.stack(observations)[..., 0]).astype(np.float32)
        advantages, returns = advantages_and_returns(
            signals[REWARD], values, signals[TERMINATED], signals[TRUNCATED], gamma, gae_lambda
        )
        for k, env in enumerate(envs):
            valid = signals[VALID, :, k] == 1.0
            expected = reference(env.history[before[k] :], gamma, gae_lambda)
            for ours, theirs in zip((advantages, returns), expected, strict=True):
                np.testing.assert_allclose(ours.numpy()[valid, k], theirs, rtol=1e-3, atol=1e-3)
        assert runner.steps == sum(len(env.history) for env in envs) - sum(before)
        finished = runner.take_episodes()
        returned += [episode.episode_return for episode in finished]
        lengths += [episode.length for episode in finished]
    played = [env._episodes[i % len(env._episodes)] for env in envs for i in range(ended(env))]
    assert sorted(returned) == sorted(float(sum(episode.rewards)) for episode in played)
    assert sorted(lengths) == sorted(len(episode.rewards) for episode in played)


def ended(env: Scripted) -> int:
    """How many episodes have come to their end."""
    return sum(terminated or truncated for _, _, terminated, truncated, _ in env.history)


@given(
    st.integers(1, 6),
    st.integers(-9, 9),
    st.lists(st.integers(-30, 30), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_any_discrete_actions(n: int, start: int, rows: list[int], seed: int) -> None:
    """Drawn ones lie in the space, whatever the logits, and the probabilities add up to 1."""
    space = gym.spaces.Discrete(n, start=start)
    actions = actions_for(space)
    logits = (
        np.random.default_rng(seed).normal(size=(len(rows), n)) * np.exp(np.array(rows))[:, None]
    )
    distribution = actions.distribution(tf.constant(logits, tf.float32))
    noise = actions.noise([len(rows)], tf.constant([seed, 1], tf.int64))
    drawn = distribution.sample(noise)
    for action in actions.to_environment(drawn).numpy():
        assert space.contains(action)
    every = [
        distribution.log_prob(tf.fill([len(rows)], tf.constant(a, tf.int64))) for a in range(n)
    ]
    np.testing.assert_allclose(np.exp(np.stack(every)).sum(axis=0), 1.0, rtol=1e-4)
    assert np.isfinite(distribution.log_prob(drawn)).all()
    entropy = distribution.entropy().numpy()
    assert (entropy >= -1e-5).all()
    assert (entropy <= np.log(n) + 1e-4).all()


@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from([np.uint8, np.int32, np.float32, np.float64]),
    st.integers(0, 100),
)
@settings(max_examples=12)
def test_any_box_of_observations(shape: list[int], dtype: Any, seed: int) -> None:
    """An agent can be built for it and acts on it; the space survives JSON."""
    low, high = (0, 255) if np.issubdtype(dtype, np.integer) else (-np.inf, np.inf)
    env = Scripted([Episode([1.0], True, False)])
    env.observation_space = gym.spaces.Box(low, high, tuple(shape), dtype, seed=seed)
    assert space_from_json(space_to_json(env.observation_space)) == env.observation_space
    agent = make_agent(env)
    assert env.action_space.contains(agent.act(env.observation_space.sample()))
