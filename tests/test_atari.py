"""Atari games: the two ways to play them, lives, limits, chance, and what is learned from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv

from a3c_tf import evaluation
from a3c_tf.agents.a3c import A3CAgent, A3CHyperparameters
from a3c_tf.agents.base import Agent
from a3c_tf.agents.n_step_q import NStepQAgent, NStepQHyperparameters
from a3c_tf.envs import atari
from a3c_tf.envs.atari import FRAME_SKIP, MAX_STEPS, is_atari, make_atari, make_atari_vector
from a3c_tf.envs.factory import RegisteredEnv, _OneByOne, make_vector_env, spaces_of
from a3c_tf.envs.runner import REWARD, TERMINATED, TRUNCATED, VALID, EnvRunner
from a3c_tf.evaluation import Evaluator
from a3c_tf.networks import build_action_value, build_actor_critic
from a3c_tf.quiet import tf
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv, where_is
from tests.helpers import make_agent, rollout_of, vector

gym.register_envs(ale_py)

BOTH = pytest.mark.parametrize("native", [True, False], ids=["native", "wrappers"])
FIRE = 1  # in Breakout: lets the ball go


def play(
    env_id: str, native: bool, count: int = 1, sticky: bool = False, noops: int = 0
) -> VectorEnv:
    """Games, from their beginning unless there are no-ops."""
    spec = gym.spec(env_id)
    if not native:
        return SyncVectorEnv([lambda: make_atari(spec, sticky, noops)] * count)
    envs = make_atari_vector(spec, count, sticky, noops)
    assert envs is not None
    return envs


def registered(env_id: str, native: bool, count: int = 1, **settings: Any) -> VectorEnv:
    """Games as a worker gets them, and one by one as where an episode's length is limited."""
    limit = None if native else MAX_STEPS
    envs = make_vector_env(RegisteredEnv(env_id, **settings), 0, count, False, limit)
    assert isinstance(envs, SyncVectorEnv) is not native
    return envs


# One game, two ways ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "steps"),
    [("ALE/Pong-v5", 300), ("ALE/Breakout-v5", 400), ("ALE/MsPacman-v5", 550)],
)
def test_both_ways_are_the_same(env_id: str, steps: int) -> None:
    """Frame by frame, over lost lives and ends; Ms. Pacman needs no FIRE to begin."""
    native, wrapped = play(env_id, True), play(env_id, False)
    for space in ("single_observation_space", "single_action_space"):
        assert getattr(native, space) == getattr(wrapped, space)
    assert native.single_observation_space.shape == (84, 84, 4)
    rng = np.random.default_rng(0)
    results = [envs.reset(seed=0) for envs in (native, wrapped)]
    lost = ends = points = 0
    for _ in range(steps):
        (*_, info), (*_, other_info) = results
        for ours, theirs in zip(results[0][:-1], results[1][:-1], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for name in ("life_lost", "lives", "frame_number", "episode_frame_number"):
            assert info[name].tolist() == other_info[name].tolist()
        action = rng.integers(native.single_action_space.n, size=1)
        results = [envs.step(action) for envs in (native, wrapped)]
        lost += results[0][-1]["life_lost"].sum()
        ends += results[0][2].sum()
        points = max(points, abs(results[0][1].item()))
    if env_id == "ALE/Pong-v5":
        assert (lost, ends, points) == (0, 0, 1)
    else:
        assert lost >= 2 * ends >= 2
        assert points == (10 if "Pacman" in env_id else 1)


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Pong-v4", "Pong-v0", "PongNoFrameskip-v4"])
@BOTH
def test_frames_are_skipped_once(env_id: str, native: bool) -> None:
    """Four a step, whatever the id's version says."""
    envs = registered(env_id, native)
    _, info = envs.reset(seed=0)
    frames = [info["frame_number"][0]]
    for _ in range(20):
        *_, info = envs.step(np.array([0]))
        frames.append(info["frame_number"][0])
    assert set(np.diff(frames)) == {FRAME_SKIP}


def test_first_frames() -> None:
    """The newest frame is the last one; before an episode's first there is nothing."""
    for native in (True, False):
        envs = play("ALE/Pong-v5", native)
        observation, _ = envs.reset(seed=0)
        filled = [observation[0].any(axis=(0, 1)).tolist()]
        for _ in range(3):
            observation, *_ = envs.step(np.array([0]))
            filled.append(observation[0].any(axis=(0, 1)).tolist())
        assert filled == [[k >= n for k in range(4)] for n in (3, 2, 1, 0)]


def test_variant_of_a_game() -> None:
    """ale-py's vector environment knows no difficulties, so it is not asked for one."""
    settings = {"game": "breakout", "difficulty": 1}
    gym.register("HardBreakout-v0", entry_point=atari.ENTRY_POINT, kwargs=settings)
    try:
        envs = make_vector_env(RegisteredEnv("HardBreakout-v0"), 0, 1, False)
        assert isinstance(envs, SyncVectorEnv)
        assert envs.single_observation_space.shape == (84, 84, 4)
    finally:
        del gym.registry["HardBreakout-v0"]


@BOTH
def test_limit(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A game is truncated after half an hour, no-ops not counted; the next step resets."""
    assert MAX_STEPS * FRAME_SKIP == 108_000
    assert MAX_STEPS == evaluation.MAX_EPISODE_STEPS
    monkeypatch.setattr(atari, "MAX_STEPS", 10)
    envs = play("ALE/Breakout-v5", native, 2, noops=30)
    envs.reset(seed=0)
    cuts, frames = [], []
    for _ in range(33):
        _, _, terminated, truncated, info = envs.step(np.array([0, 0]))
        assert not terminated.any()
        cuts.append(truncated.tolist())
        frames.append(info["episode_frame_number"].tolist())
    assert cuts == [[step % 11 == 9] * 2 for step in range(33)]
    assert max(frames[10]) < 40 < min(frames[9])


# Chance -----------------------------------------------------------------------------------------


def film(envs: VectorEnv, seed: int, steps: int = 60) -> npt.NDArray[np.uint8]:
    """The observations under a fixed sequence of actions, [steps + 1, K, 84, 84, 4]."""
    actions = np.random.default_rng(7).integers(
        envs.single_action_space.n, size=(steps, envs.num_envs)
    )
    observations = [envs.reset(seed=seed)[0].copy()]
    observations += [envs.step(action)[0].copy() for action in actions]
    return np.array(observations)


@BOTH
def test_actions_do_not_stick(native: bool) -> None:
    """Though ALE/Pong-v5 says so: from the same start, the seed makes no difference."""
    first, second = (film(play("ALE/Pong-v5", native), seed) for seed in (1, 2))
    np.testing.assert_array_equal(first, second)


@BOTH
def test_sticky_actions(native: bool) -> None:
    """On request; they are drawn from the seed."""
    plain = film(play("ALE/Pong-v5", native), 1)
    sticky = film(play("ALE/Pong-v5", native, sticky=True), 1)
    again = film(play("ALE/Pong-v5", native, sticky=True), 1)
    other = film(play("ALE/Pong-v5", native, sticky=True), 2)
    np.testing.assert_array_equal(sticky, again)
    assert (sticky != plain).any()
    assert (sticky != other).any()


@BOTH
def test_sticky_actions_of_an_id(native: bool) -> None:
    """`RegisteredEnv` passes them on, also where the id's version has them off."""
    plain, again = (film(registered("PongNoFrameskip-v4", native), 1) for _ in range(2))
    sticky = film(registered("PongNoFrameskip-v4", native, sticky_actions=True), 1)
    np.testing.assert_array_equal(plain, again)
    assert (plain != sticky).any()


def test_sticky_actions_are_for_atari() -> None:
    """One line that names the id."""
    with pytest.raises(ValueError, match=r"^sticky_actions is True, but CartPole-v1 is no Atari"):
        RegisteredEnv("CartPole-v1", sticky_actions=True)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1])
@BOTH
def test_starts(native: bool, seed: int) -> None:
    """Up to 30 no-ops: by the seed, not the same for all environments and all seeds."""
    envs = registered("ALE/Pong-v5", native, count=3)

    def starts(seed: int | None) -> list[int]:
        return envs.reset(seed=seed)[1]["episode_frame_number"].tolist()

    first = starts(seed)
    assert 1 <= min(first) < max(first) <= 31
    assert starts(seed) == first
    assert starts((seed + 1000) % 2**32) != first
    assert starts(None) != first  # as in every later episode


@pytest.mark.parametrize("sticky", [False, True])
def test_games_can_be_repeated(sticky: bool) -> None:
    """From what a checkpoint of a deterministic run holds, in a game after the first."""
    make_env = RegisteredEnv("ALE/Breakout-v5", sticky)
    envs, others = (make_vector_env(make_env, 0, 1, False, replayable=True) for _ in range(2))
    assert isinstance(envs, _OneByOne)
    assert isinstance(others, _OneByOne)
    actions = np.random.default_rng(0).integers(4, size=(600, 1))
    envs.reset(seed=0)
    games = 0
    for action in actions[:300]:
        observation, _, terminated, _, _ = envs.step(action)
        games += terminated.sum()
    (env,) = envs.replayable
    assert games
    assert env.position()["actions"]
    there = others.move_to([env.position()], [False])
    np.testing.assert_array_equal(there, observation)
    for action in actions[300:]:
        for ours, theirs in zip(envs.step(action)[:4], others.step(action)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    # But no game is that before it.
    assert len({envs.reset()[1]["episode_frame_number"].item() for _ in range(3)}) > 1


# Lives ------------------------------------------------------------------------------------------


class _Lives(KnownEnv):
    """Five steps, worth 1 to 5; the second costs a life."""

    def __init__(self, worker: float = 0) -> None:
        super().__init__(worker, (1.0, 2.0, 3.0, 4.0, 5.0), "terminated")

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | {"life_lost": len(self.history) % 5 == 2}


def test_lost_life() -> None:
    """Nothing is learned across it, but the episode goes on: no reset, one return and length."""
    runner = EnvRunner(vector(_Lives(), KnownEnv()), 6)
    observations = [runner.begin_rollout()[0]]
    observations += [runner.step(np.array([0, 0]))[0] for _ in range(6)]
    signals = runner.finish_rollout()
    assert signals[TERMINATED, :, 0].tolist() == [0, 1, 0, 0, 1, 0]
    assert signals[VALID, :, 0].tolist() == [1, 1, 1, 1, 1, 0]
    assert signals[REWARD, :, 0].tolist() == [1, 2, 3, 4, 5, 0]
    assert [where_is(o[0])[1:] for o in observations] == [
        *[(0, step) for step in range(6)],
        (1, 0),
    ]
    assert [(e.episode_return, e.length) for e in runner.take_episodes()] == [(15, 5), (5, 5)]
    # The other environment has lost no life.
    assert not signals[TERMINATED, :, 1].any()
    assert signals[TRUNCATED, :, 1].tolist() == [0, 0, 0, 0, 1, 0]


def test_evaluation_counts_whole_games() -> None:
    """A lost life is no end there."""
    scores = Evaluator(make_agent(_Lives()), lambda index, test: _Lives(), 4, envs=2).run()
    assert scores is not None
    assert scores.returns.tolist() == [15.0] * 4
    assert scores.lengths.tolist() == [5] * 4


@BOTH
def test_lives_of_breakout(native: bool) -> None:
    """Five of them make a game."""
    runner = EnvRunner(registered("ALE/Breakout-v5", native, 2), 10, seed=0)
    signals = []
    episodes = []
    while len(episodes) < 2:
        runner.begin_rollout()
        for _ in range(10):
            runner.step(np.full(2, FIRE))
        signals.append(runner.finish_rollout())
        episodes += runner.take_episodes()
    terminated, valid = (np.concatenate([s[i] for s in signals]) for i in (TERMINATED, VALID))
    rewards = np.concatenate([s[REWARD] for s in signals])
    for k in range(2):
        losses = np.flatnonzero(terminated[:, k])[:5]
        assert np.diff(losses).min() > 10  # the ball falls for a while
        assert np.flatnonzero(valid[:, k] == 0)[:1].tolist() in ([], [losses[4] + 1])
        length = losses[4] + 1
        assert (rewards[:length, k].sum(), length) in [
            (e.episode_return, e.length) for e in episodes
        ]


def test_evaluation_of_breakout() -> None:
    """The scores are of games of five lives, which last five times as long as one."""
    make_env = RegisteredEnv("ALE/Breakout-v5")
    agent = make_agent(make_env(0, True))
    for weight in agent.weights:
        always_fire = 99.0 * np.eye(4)[FIRE] if weight.shape == (4,) else 0.0
        weight.assign(np.broadcast_to(always_fire, weight.shape))
    scores = Evaluator(agent, make_env, 2, envs=2).run()
    assert scores is not None
    assert scores.lengths.min() > 5 * 20


# Rewards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "loss"), [(0.0, (9 + 25 + 0.25) / 3), (1.0, 2.25 / 3)])
@pytest.mark.parametrize("kind", [A3CAgent, NStepQAgent])
def test_rewards_are_clipped_for_the_loss(kind: type[Agent], limit: float, loss: float) -> None:
    """Where all values are 0 and each step ends an episode, it is the mean squared reward."""
    spaces = KnownEnv().observation_space, KnownEnv().action_space
    agent: Agent
    if kind is A3CAgent:
        settings = A3CHyperparameters(reward_clip=limit)
        agent = A3CAgent(build_actor_critic(*spaces, ()), *spaces, hyperparameters=settings)
    else:
        q_settings = NStepQHyperparameters(reward_clip=limit)
        agent = NStepQAgent(build_action_value(*spaces, ()), *spaces, hyperparameters=q_settings)
    for weight in agent.weights:
        weight.assign(tf.zeros_like(weight))
    rewards = np.array([[3.0], [-5.0], [0.5]], np.float32)
    observations = np.zeros((4, 1, *spaces[0].shape), np.float32)
    every, none = np.ones_like(rewards), np.zeros_like(rewards)
    rollout = rollout_of(observations, np.zeros((3, 1), np.int64), rewards, every, none, every)
    _, statistics = agent.loss(rollout, 0.0)
    name = "loss/value" if kind is A3CAgent else "loss/total"
    assert float(statistics[agent.statistics.index(name)]) == pytest.approx(loss)


# Ids ------------------------------------------------------------------------------------------


def test_memory_is_no_picture(tmp_path: Path) -> None:
    """A game seen as its 128 bytes of memory is trained as that."""

    def make_env(index: int, test: bool) -> gym.Env:
        return gym.make("ALE/Pong-v5", obs_type="ram")

    assert not is_atari(make_env(0, True).spec)
    observation_space, action_space = spaces_of(make_env)
    assert observation_space.shape == (128,)
    model = build_actor_critic(observation_space, action_space, (8,))
    agent = A3CAgent(model, observation_space, action_space)
    train_agent_async(tmp_path / "run", 1, make_env, agent=agent, steps=40, eval_interval=None)


@pytest.mark.parametrize("setting", [{"continuous": True}, {"sound_obs": True}])
def test_other_kinds_of_games(setting: dict[str, bool]) -> None:
    """What is not seen as pixels alone, or not played with a joystick, is left as it is."""
    assert not is_atari(gym.make("ALE/Pong-v5", **setting).spec)


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Pong-v4", "PongNoFrameskip-v4"])
def test_games_that_are_not_installed(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the id and the way out."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    games = [name for name, spec in gym.registry.items() if spec.entry_point == atari.ENTRY_POINT]
    for name in games:
        monkeypatch.delitem(gym.registry, name)
    with pytest.raises(ValueError, match=r"pip install 'a3c_tf\[atari\]'") as raised:
        RegisteredEnv(env_id)
    assert env_id in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["frameskip", "repeat_action_probability"])
def test_arguments_that_are_the_same_for_all_games(name: str) -> None:
    """They would be without effect."""
    with pytest.raises(ValueError, match=f"^{name}=0 is no argument of ALE/Pong-v5 here"):
        RegisteredEnv("ALE/Pong-v5", arguments={name: 0})


def test_arguments_of_a_game() -> None:
    """Whatever else ale-py takes, in both ways to play."""
    make_env = RegisteredEnv("ALE/Pong-v5", arguments={"full_action_space": True})
    assert make_env(0, True).action_space == gym.spaces.Discrete(18)
    assert make_vector_env(make_env, 0, 2, False).single_action_space == gym.spaces.Discrete(18)


def test_no_such_game() -> None:
    """Where they are installed, the advice is names spelled like it."""
    with pytest.raises(ValueError, match=r"near: .*ALE/Pong-v5") as raised:
        RegisteredEnv("ALE/Pung-v5")
    assert "pip install" not in str(raised.value)
