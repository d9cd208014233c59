"""Evaluation: which episodes count, and that nothing else is touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from a3c_tf import evaluation
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.envs.factory import RegisteredEnv
from a3c_tf.errors import NotFiniteError
from a3c_tf.evaluation import Evaluator, Scores
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import tf
from tests.envs import BadNumbersEnv, KnownEnv, where_is
from tests.helpers import make_agent

LENGTHS = (5, 1, 2)  # of the episodes of environment 0, 1, 2, and of all that follow


class _Numbered(KnownEnv):
    """Episode e of environment i returns 100 * i + e, paid on its last step."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        index, episode, _ = where_is(observation)
        reward = float(100 * index + episode) if terminated or truncated else 0.0
        return observation, reward, terminated, truncated, info


class _Maker:
    """`make_env` that keeps what it has made, and what it was asked for."""

    def __init__(self, make: Callable[[int], KnownEnv] = KnownEnv) -> None:
        self.made: list[KnownEnv] = []
        self.calls: list[tuple[int, bool]] = []
        self._make = make

    def __call__(self, index: int, test: bool) -> gym.Env:
        self.calls.append((index, test))
        self.made.append(self._make(len(self.made)))
        return self.made[-1]


def numbered(index: int) -> KnownEnv:
    """Environment `index`, with episodes of a length of its own."""
    return _Numbered(index, (0.0,) * LENGTHS[min(index, len(LENGTHS) - 1)])


class _Narrow(SyncVectorEnv):
    """Observations are cut short."""

    def __init__(self, count: int) -> None:
        super().__init__([KnownEnv] * count)

    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        return observations[:, :3], *rest


@pytest.fixture
def agent() -> A3CAgent:
    """A linear agent for all `KnownEnv`s."""
    return make_agent(KnownEnv())


def run(evaluator: Evaluator) -> Scores:
    """An evaluation that is not interrupted."""
    scores = evaluator.run()
    assert scores is not None
    return scores


# Which episodes count ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episodes", "counted"),
    [
        (1, [0]),
        (2, [0, 100]),
        (3, [0, 100, 200]),
        (6, [0, 1, 100, 101, 200, 201]),
        (7, [0, 1, 2, 100, 101, 200, 201]),
        (8, [0, 1, 2, 100, 101, 102, 200, 201]),
    ],
)
def test_which_episodes_count(agent: A3CAgent, episodes: int, counted: list[int]) -> None:
    """The first n/K of each of K environments, one more of the first n%K; not the fastest n."""
    scores = run(Evaluator(agent, _Maker(numbered), episodes, envs=3))
    assert sorted(scores.returns) == counted
    expected = [LENGTHS[int(episode_return) // 100] for episode_return in scores.returns]
    assert scores.lengths.tolist() == expected


def test_many_at_once(agent: A3CAgent) -> None:
    """One environment for each episode, as far as the limit allows; by default just one."""
    for episodes, envs in ((4, 4), (50, 20), (5, 1)):
        maker = _Maker()
        limit = {} if envs == 1 else {"envs": 20}
        scores = run(Evaluator(agent, maker, episodes, **limit))
        assert len(maker.made) == envs
        assert len(scores.returns) == len(scores.lengths) == episodes


def test_whole_episodes(agent: A3CAgent) -> None:
    """Each one from its reset to its end: all rewards as they are, and no reset step."""
    rewards = (100.0, -3.0, 0.5, 7.0)
    maker = _Maker(lambda index: KnownEnv(index, rewards))
    scores = run(Evaluator(agent, maker, 50))
    assert scores.returns.tolist() == [sum(rewards)] * 50
    assert scores.lengths.tolist() == [len(rewards)] * 50
    assert scores.lengths.sum() <= sum(len(env.history) for env in maker.made)


@pytest.mark.parametrize(
    ("steps", "lengths", "returns"),
    [
        (10, [5, 5], [5.0, 5.0]),
        (12, [5, 5], [5.0, 5.0]),
        (9, [5], [5.0]),
        (3, [3], [3.0]),
        (5, [5], [5.0]),
    ],
)
def test_so_many_steps(
    agent: A3CAgent, steps: int, lengths: list[int], returns: list[float]
) -> None:
    """The episodes that end in them; the unfinished one is dropped, unless it is the only one."""
    maker = _Maker()
    scores = run(Evaluator(agent, maker, None, steps=steps, envs=20))
    assert scores.lengths.tolist() == lengths
    assert scores.returns.tolist() == returns
    assert len(maker.made) == 1
    assert len(maker.made[0].history) == steps


def test_max_episode_len(agent: A3CAgent) -> None:
    """Cuts evaluation episodes, and each begins with a reset of its own."""
    maker = _Maker(lambda index: KnownEnv(rewards=(1.0, 2.0, 4.0, 8.0, 16.0)))
    scores = run(Evaluator(agent, maker, 4, max_episode_len=3))
    assert scores.returns.tolist() == [7.0] * 4
    assert scores.lengths.tolist() == [3] * 4


def test_environment_that_was_made_already(agent: A3CAgent) -> None:
    """It is one of those that are stepped; without an evaluation it is closed all the same."""
    for evaluate in (True, False):
        maker, first = _Maker(), KnownEnv()
        evaluator = Evaluator(agent, maker, 2, envs=2, first=first)
        if evaluate:
            run(evaluator)
            assert len(maker.made) == 1
            assert len(first.history) == 5
        evaluator.close()
        assert first.closed


class _PayingReset(SyncVectorEnv):
    """Gives a reward of 100 for the reset step, as Gymnasium's functional environments may."""

    def step(self, actions: Any) -> Any:
        resetting = self._autoreset_envs.copy()
        observation, rewards, *rest = super().step(actions)
        return observation, np.where(resetting, 100.0, rewards), *rest


def test_reward_of_a_reset_step_is_nobodys(agent: A3CAgent) -> None:
    """Whatever the environments say about it, it belongs to no episode."""
    envs = _PayingReset([lambda: KnownEnv(rewards=(1.0, 2.0))] * 2)
    scores = run(Evaluator(agent, lambda index, test: envs, 6, envs=2))
    assert scores.returns.tolist() == [3.0] * 6
    assert scores.lengths.tolist() == [2] * 6


class _Endless(KnownEnv):
    """Does not end, and pays 1 a step."""

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, False, False, {}


def test_episode_limit(agent: A3CAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode that would never end is cut off, and counts as far as it went."""
    monkeypatch.setattr(evaluation, "MAX_EPISODE_STEPS", 7)
    scores = run(Evaluator(agent, _Maker(_Endless), 5, envs=2))
    assert scores.returns.tolist() == [7.0] * 5
    assert scores.lengths.tolist() == [7] * 5


def test_second_evaluation(agent: A3CAgent) -> None:
    """The environments are used again, from a reset on: nothing is left of the first."""
    maker = _Maker(lambda index: KnownEnv(index, (1.0,) * (index + 1)))
    evaluator = Evaluator(agent, maker, 3, envs=3)
    for _ in range(2):
        assert sorted(run(evaluator).lengths) == [1, 2, 3]
    assert len(maker.made) == 3


# Interrupted ---------------------------------------------------------------------------------


def test_interrupted(agent: A3CAgent) -> None:
    """No scores from half an evaluation; the next one is whole again."""
    maker = _Maker(lambda index: KnownEnv(index, (1.0,) * 5))
    evaluator = Evaluator(agent, maker, 2, envs=2)
    assert evaluator.run(lambda: len(maker.made[0].history) == 3) is None
    assert len(maker.made[0].history) == 3
    assert run(evaluator).lengths.tolist() == [5, 5]


@pytest.mark.parametrize("array", ["observation", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(agent: A3CAgent, array: str, value: float) -> None:
    """An error that names the environment, and no scores."""
    maker = _Maker(lambda index: BadNumbersEnv(array, value, 7) if index == 1 else KnownEnv())
    message = f"^the {array} of evaluation environment 1 is {value}$"
    with pytest.raises(NotFiniteError, match=message):
        Evaluator(agent, maker, 6, envs=3).run()


def test_vector_environment_with_observations_of_another_shape(agent: A3CAgent) -> None:
    """A message that names both shapes."""
    evaluator = Evaluator(agent, lambda index, test: _Narrow(2), 2, envs=2)
    with pytest.raises(ValueError, match=r"shape \(3,\), .* \(11,\)$"):
        evaluator.run()


# What is touched, and what is not ------------------------------------------------------------


def test_environments_of_its_own(agent: A3CAgent) -> None:
    """Made with test=True when first needed, and closed at the end."""
    maker = _Maker()
    evaluator = Evaluator(agent, maker, 3, envs=3)
    assert maker.calls == []
    run(evaluator)
    assert maker.calls == [(0, True)] * 3
    evaluator.close()
    evaluator.close()
    assert all(env.closed for env in maker.made)


def test_changes_no_training_state(agent: A3CAgent) -> None:
    """Weights, optimizer, counters and everybody's random numbers are as before."""
    server = ParameterServer(agent)
    random.seed(1)
    np.random.seed(1)
    tf.random.set_seed(1)
    before = server.snapshot()
    states = (random.getstate(), np.random.get_state()[1].tolist())
    evaluated = agent.clone()
    run(Evaluator(evaluated, _Maker(), 5))
    after = server.snapshot()
    for ours, theirs in (
        (before.weights, after.weights),
        (before.optimizer, after.optimizer),
        (before.weights, evaluated.model.get_weights()),
    ):
        for array, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(array, other)
    assert (after.global_step, after.version, after.episodes) == (0, 0, 0)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())
    following = float(tf.random.uniform([]))
    tf.random.set_seed(1)
    assert following == float(tf.random.uniform([]))


# Actions ---------------------------------------------------------------------------------------


def actions_taken(agent: A3CAgent, greedy: bool) -> list[int]:
    """All actions of an evaluation of 20 episodes of 5 steps."""
    maker = _Maker()
    run(Evaluator(agent, maker, 20, greedy=greedy, envs=20))
    return [step.action for env in maker.made for step in env.history]


def test_greedy() -> None:
    """The most likely action each time; otherwise both are drawn, as often as the policy says."""
    agent = make_agent(KnownEnv())
    output = agent.model.get_layer("policy_output")
    kernel, bias = output.get_weights()
    output.set_weights([np.zeros_like(kernel), np.array([0.0, np.log(3)], bias.dtype)])
    assert set(actions_taken(agent, greedy=True)) == {1}
    assert 0.6 < np.mean(actions_taken(agent, greedy=False)) < 0.9  # 0.75, of 100


def test_uses_the_weights_of_the_moment() -> None:
    """Weights put into the agent later are those that act."""
    agent = make_agent(KnownEnv())
    maker = _Maker()
    evaluator = Evaluator(agent, maker, 1, greedy=True)
    output = agent.model.get_layer("policy_output")
    kernel, _ = output.get_weights()
    for action in (0, 1, 0):
        output.set_weights([np.zeros_like(kernel), np.eye(2, dtype=np.float32)[action]])
        run(evaluator)
        assert {step.action for step in maker.made[0].history} == {action}
        maker.made[0].history.clear()


@pytest.mark.parametrize("seed", [0, 3])
def test_same_seed_same_scores(seed: int) -> None:
    """A seed and a number repeat environments and actions; another of either does not."""
    make_env = RegisteredEnv("CartPole-v1")
    agent = make_agent(make_env(0, True))

    def scores(seed: int, *numbers: int) -> list[list[float]]:
        evaluator = Evaluator(agent, make_env, 10, seed, envs=10)
        results = [evaluator.run(number=number) for number in numbers]
        evaluator.close()
        return [result.returns.tolist() for result in results if result]

    first, second = scores(seed, 0, 7)
    assert first != second
    assert scores(seed, 7, 0) == [second, first]
    assert scores(seed + 1, 0) != [first]


# Numbers ---------------------------------------------------------------------------------------


def test_summary() -> None:
    """Mean, median, deviation of the sample, max and min; one episode has no deviation."""
    scores = Scores(np.array([1.0, 2.0, 6.0]), np.array([1, 1, 1]))
    assert scores.summary() == {
        "mean": 3.0,
        "median": 2.0,
        "stdev": pytest.approx(7**0.5),
        "max": 6.0,
        "min": 1.0,
    }
    assert Scores(np.array([4.0]), np.array([1])).summary()["stdev"] == 0.0
