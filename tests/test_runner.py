"""The runner: stepping, masking, counting."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.vector import SyncVectorEnv

from a3c_tf.envs.factory import make_vector_env
from a3c_tf.envs.runner import (
    DISCOUNTED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    EnvRunner,
    Episode,
)
from a3c_tf.observations import part_dtype
from tests.envs import BrokenEnvError, Ending, FailingEnv, KnownEnv, where_is
from tests.helpers import vector


def roll(runner: EnvRunner, t_max: int) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.float32]]:
    """One rollout of actions 0: the T + 1 observations and the signals."""
    observations = [runner.begin_rollout()[0]]
    actions = np.zeros(runner.envs.num_envs, np.int64)
    observations += [runner.step(actions)[0] for _ in range(t_max)]
    return observations, runner.finish_rollout()


@pytest.mark.parametrize(
    ("ending", "terminated", "truncated"),
    [("terminated", 1, 0), ("truncated", 0, 1), ("both", 1, 0)],
)
def test_signals_of_an_episode_end(ending: Ending, terminated: int, truncated: int) -> None:
    """The step after an end is masked; both flags at once mean terminated."""
    runner = EnvRunner(vector(KnownEnv(rewards=(1.0, 2.0), ending=ending)), 5)
    observations, signals = roll(runner, 5)
    assert signals.shape == (5, 5, 1)
    assert signals.dtype == np.float32
    np.testing.assert_array_equal(signals[REWARD, :, 0], [1, 2, 0, 1, 2])
    np.testing.assert_array_equal(signals[VALID, :, 0], [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(signals[TERMINATED, :, 0], np.array([0, 1, 0, 0, 1]) * terminated)
    np.testing.assert_array_equal(signals[TRUNCATED, :, 0], np.array([0, 1, 0, 0, 1]) * truncated)
    assert [where_is(o[0])[1:] for o in observations] == [
        *[(0, 0), (0, 1), (0, 2)],  # the final observation, before the reset
        *[(1, 0), (1, 1), (1, 2)],
    ]


@pytest.mark.parametrize("t_max", [1, 2, 3, 7])
def test_counts_across_rollouts(t_max: int) -> None:
    """Steps and episodes are what the environments took, wherever the rollouts are cut."""
    lengths = (1, 2, 5)  # the first ends on every step
    envs = [KnownEnv(k, (1.0,) * length) for k, length in enumerate(lengths)]
    runner = EnvRunner(vector(*envs), t_max)
    steps = episodes = 0
    finished: list[Episode] = []
    for _ in range(6):
        _, signals = roll(runner, t_max)
        assert runner.steps == signals[VALID].sum()
        steps += runner.steps
        episodes += runner.episodes
        finished += runner.take_episodes()
        assert steps == sum(len(env.history) for env in envs)
        assert episodes == sum(step.truncated for env in envs for step in env.history)
    assert len(finished) == episodes
    expected = [Episode(float(n), n) for env, n in zip(envs, lengths, strict=True)
                for step in env.history if step.truncated]  # fmt: skip
    assert sorted(finished, key=str) == sorted(expected, key=str)
    assert runner.take_episodes() == []


def test_native_vector_environment() -> None:
    """CartPole gives 1 a step: every episode's return is its length, the resets left out."""
    envs = gym.make_vec(
        "CartPole-v1", 4, vectorization_mode="vector_entry_point", max_episode_steps=9
    )
    runner = EnvRunner(envs, 7, seed=0)
    steps = rewards = 0
    for _ in range(20):
        _, signals = roll(runner, 7)
        rewards += signals[REWARD].sum()
        steps += runner.steps
    assert rewards == steps
    episodes = runner.take_episodes()
    assert len(episodes) > 40
    assert {episode.length for episode in episodes} == {8, 9}
    for episode in episodes:
        assert episode.episode_return == episode.length


def test_lock_step_environments_do_not_mix() -> None:
    """Column k of everything belongs to environment k."""
    envs = [KnownEnv(k, (float(k),) * (k + 1)) for k in range(3)]
    observations, signals = roll(EnvRunner(vector(*envs), 4), 4)
    for k in range(3):
        assert {where_is(observation[k])[0] for observation in observations} == {k}
        np.testing.assert_array_equal(signals[REWARD, :, k], k * signals[VALID, :, k])


@pytest.mark.parametrize(
    "reward", [1, True, 1.0, np.float64(1), np.float32(1), np.int64(1), np.array(1.0), np.ones(1)],
    ids=["int", "bool", "float", "float64", "float32", "int64", "shape ()", "shape (1,)"],
)  # fmt: skip
def test_kinds_of_rewards(reward: Any) -> None:
    """Any number does, also as an array of one."""
    envs = make_vector_env(lambda index, test: KnownEnv(index, (reward,) * 2), 0, 2, False)
    runner = EnvRunner(envs, 3)
    _, signals = roll(runner, 3)
    assert runner.error is None
    np.testing.assert_array_equal(signals[REWARD], [[1, 1], [1, 1], [0, 0]])
    assert runner.take_episodes() == [Episode(2.0, 2)] * 2


class PayingReset(SyncVectorEnv):
    """Gives a reward of 100 for the reset step, as Gymnasium's functional environments may."""

    def step(self, actions: Any) -> Any:
        """Takes one step in each environment."""
        resetting = self._autoreset_envs.copy()
        observation, rewards, *rest = super().step(actions)
        return observation, np.where(resetting, 100.0, rewards), *rest


@pytest.mark.parametrize("t_max", [1, 2, 4])
def test_reward_of_a_reset_step_is_nobodys(t_max: int) -> None:
    """It belongs to no episode, and does not reach the learner."""
    runner = EnvRunner(PayingReset([lambda: KnownEnv(rewards=(1.0, 2.0))]), t_max)
    signals = np.concatenate([roll(runner, t_max)[1] for _ in range(8 // t_max)], axis=1)
    np.testing.assert_array_equal(signals[REWARD, :, 0], [1, 2, 0, 1, 2, 0, 1, 2])
    assert runner.take_episodes() == [Episode(3.0, 2)] * 3


@pytest.mark.parametrize("t_max", [1, 2, 4])
def test_discounted_returns(t_max: int) -> None:
    """G_t = r_t + gamma G_{t-1}, from 0 in each episode, also across rollouts; without resets."""
    envs = PayingReset([lambda: KnownEnv(rewards=(1.0, 2.0)), lambda: KnownEnv(rewards=(3.0,) * 6)])
    runner = EnvRunner(envs, t_max, discount=0.5)
    signals = np.concatenate([roll(runner, t_max)[1] for _ in range(8 // t_max)], axis=1)
    returns, valid = signals[DISCOUNTED], signals[VALID] == 1
    np.testing.assert_array_equal(returns[valid[:, 0], 0], [1, 2.5, 1, 2.5, 1, 2.5])
    np.testing.assert_array_equal(
        returns[valid[:, 1], 1], [3, 4.5, 5.25, 5.625, 5.8125, 5.90625, 3]
    )
    assert not roll(EnvRunner(vector(KnownEnv()), 3), 3)[1][DISCOUNTED].any()


def test_discounted_returns_after_a_stop() -> None:
    """Steps that are not taken add nothing."""
    env = KnownEnv(rewards=(1.0, 2.0, 4.0, 8.0, 16.0))
    stops = iter([False] * 3 + [True])
    runner = EnvRunner(vector(env), 2, should_stop=lambda: next(stops, False), discount=0.5)
    signals = [roll(runner, 2)[1][DISCOUNTED, :, 0].tolist() for _ in range(3)]
    assert signals == [[1.0, 2.5], [5.25, 0.0], [10.625, 21.3125]]


class LosingLives(SyncVectorEnv):
    """Says that a life has been lost on every step."""

    def step(self, actions: Any) -> Any:
        """Takes one step in each environment."""
        *rest, infos = super().step(actions)
        return *rest, infos | {"life_lost": np.ones(self.num_envs, np.bool_)}


def test_lost_life_goes_on() -> None:
    """It is an end for what is learned, but nothing starts anew."""
    runner = EnvRunner(LosingLives([KnownEnv]), 3, discount=1.0)
    signals = roll(runner, 3)[1]
    np.testing.assert_array_equal(signals[TERMINATED, :, 0], 1.0)
    np.testing.assert_array_equal(signals[DISCOUNTED, :, 0], [1, 2, 3])
    np.testing.assert_array_equal(runner.starts, 0.0)


@pytest.mark.parametrize("t_max", [1, 2, 3, 7])
def test_starts(t_max: int) -> None:
    """Exactly the first observation of each episode, not the final one before it."""
    envs = vector(*[KnownEnv(k, (1.0,) * length) for k, length in enumerate((1, 2, 5))])
    runner = EnvRunner(envs, t_max)
    for _ in range(20 // t_max):
        observations = runner.begin_rollout()[0]
        for _ in range(t_max):
            expected = [where_is(observation)[2] == 0 for observation in observations]
            np.testing.assert_array_equal(runner.starts, np.array(expected, np.float32))
            observations = runner.step(np.zeros(3, np.int64))[0]
        runner.finish_rollout()


@pytest.mark.parametrize("alias", [False, True])
def test_observations_are_copies(alias: bool) -> None:
    """What was returned is not written over, though the environments reuse their arrays."""
    observations, _ = roll(EnvRunner(vector(KnownEnv(alias=alias)), 4), 4)
    assert [where_is(observation[0])[2] for observation in observations] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 7, None])
def test_only_the_first_reset_is_seeded(seed: int | None) -> None:
    """Each environment has a seed of its own, once; 0 is a seed."""
    envs = [KnownEnv(k, (1.0,)) for k in range(2)]
    runner = EnvRunner(vector(*envs), 2, seed)
    for _ in range(3):
        roll(runner, 2)
    for k, env in enumerate(envs):
        assert env.seeds == [None if seed is None else seed + k, None, None, None]


@pytest.mark.parametrize("good_steps", [0, 2, 3])
@pytest.mark.parametrize("error", [BrokenEnvError, KeyboardInterrupt, SystemExit])
def test_first_error_is_kept(error: type[BaseException], good_steps: int) -> None:
    """It does not pass through the graph; the environments are not touched any more."""
    env = FailingEnv(good_steps, error)
    runner = EnvRunner(vector(env), 4)
    try:
        observations, _ = roll(runner, 4)
    except error:
        pytest.fail(f"{error.__name__} came out of the runner")
    first = runner.error
    assert type(first) is error
    assert runner.interrupted
    assert runner.steps == len(env.history) == good_steps
    assert where_is(observations[-1][0])[2] == good_steps
    roll(runner, 4)
    assert runner.error is first
    assert runner.steps == 0


def test_error_in_reset() -> None:
    """It is kept too; nothing is stepped or counted."""
    env = FailingEnv("reset")
    runner = EnvRunner(vector(env), 3)
    roll(runner, 3)
    assert isinstance(runner.error, BrokenEnvError)
    assert (runner.interrupted, runner.steps, env.history) == (True, 0, [])


@pytest.mark.parametrize("allowed", [0, 3])
def test_stop_within_a_rollout(allowed: int) -> None:
    """The steps before it count, the others are not taken."""
    env = KnownEnv(rewards=(1.0, 1.0, 1.0, 1.0))
    runner = EnvRunner(vector(env), 5, should_stop=lambda: len(env.history) == allowed)
    roll(runner, 5)
    assert runner.interrupted
    assert runner.error is None
    assert runner.steps == len(env.history) == allowed


def test_observation_of_another_shape() -> None:
    """A message that names both shapes."""
    env = KnownEnv()
    envs = vector(env)
    envs.single_observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    runner = EnvRunner(envs, 1)
    runner.begin_rollout()
    with pytest.raises(ValueError, match=r"\(11,\).*\(2,\)"):
        raise runner.error  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("uint8", "uint8"), ("float32", "float32"), ("float64", "float32"), ("int64", "float32")],
)
def test_observation_dtypes(given: str, kept: str) -> None:
    """Bytes stay bytes, everything else is cast to float32."""
    dtype: Any = np.dtype(given).type
    assert part_dtype(gym.spaces.Box(0, 1, (2,), dtype)) == kept


def test_close() -> None:
    """Closes the environments."""
    env = KnownEnv()
    EnvRunner(vector(env), 1).close()
    assert env.closed
