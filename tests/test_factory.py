"""From ids and user functions to vector environments, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from a3c_tf.envs.factory import RegisteredEnv, make_vector_env, spaces_of
from a3c_tf.envs.runner import TERMINATED, TRUNCATED, EnvRunner
from tests.envs import ABCEnv, FailingEnv, KnownEnv, OldStyleEnv


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Ids that a test registers are gone after it."""
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


# Ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("CartPol-v1", "near: CartPole-v1"),
        ("CartPole-v7", "near: CartPole-v1"),
        ("Cartpole-v1", "near: CartPole-v1"),
        ("no_such_module:X-v0", "no_such_module"),
        ("tests.envs:X-v0", "X"),
    ],
)
def test_unknown_id(env_id: str, hint: str) -> None:
    """One line that names the id and those spelled like it."""
    with pytest.raises(ValueError, match=hint) as raised:
        RegisteredEnv(env_id)
    assert env_id in str(raised.value)
    assert "\n" not in str(raised.value)


def test_id_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:Id` imports the module, which registers the id."""
    (tmp_path / "my_module.py").write_text(
        "import gymnasium\n"
        "from tests.envs import ABCEnv\n"
        "gymnasium.register('Letters-v0', entry_point=ABCEnv)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    make_env = RegisteredEnv("my_module:Letters-v0")
    observation_space, action_space = spaces_of(make_env)
    assert (observation_space.shape, action_space.n) == ((3,), 3)
    assert isinstance(make_env(0, False).unwrapped, ABCEnv)
    assert make_vector_env(make_env, 0, 4, test=False).num_envs == 4


def test_arguments() -> None:
    """Go before those that the id is registered with, in every environment."""
    make_env = RegisteredEnv("FrozenLake-v1", arguments={"map_name": "8x8", "is_slippery": False})
    assert spaces_of(make_env)[0] == gym.spaces.Discrete(64)
    for env in (make_env(0, True), make_vector_env(make_env, 0, 1, test=False).envs[0]):
        assert env.unwrapped.P[0][2] == [(1.0, 1, 0, False)]  # not slippery: right is right
    assert spaces_of(RegisteredEnv("FrozenLake-v1"))[0] == gym.spaces.Discrete(16)


def test_arguments_of_an_id_with_a_vector_environment() -> None:
    """They reach each environment: punished for the end is not what CartPole usually is."""
    make_env = RegisteredEnv("CartPole-v1", arguments={"sutton_barto_reward": True})
    envs = make_vector_env(make_env, 0, 2, test=False)
    envs.reset(seed=0)
    _, rewards, *_ = envs.step(np.array([0, 1]))
    assert rewards.tolist() == [0, 0]


@pytest.mark.parametrize("arguments", [{"no_such": 3}, {"map_name": "9x9"}])
def test_arguments_that_an_environment_does_not_take(arguments: dict[str, Any]) -> None:
    """One line that names them and says what the environment said."""
    with pytest.raises(
        ValueError, match=r"'FrozenLake-v1' cannot be made with \w+=\w+: "
    ) as raised:
        RegisteredEnv("FrozenLake-v1", arguments=arguments)(0, True)
    assert "\n" not in str(raised.value)


def test_own_vector_environment_of_an_id() -> None:
    """Taken where the id offers one in the right mode, else K single ones are stepped."""
    native = make_vector_env(RegisteredEnv("CartPole-v1"), 0, 3, test=False)
    assert isinstance(native.unwrapped, CartPoleVectorEnv)

    def same_step(num_envs: int, **settings: Any) -> VectorEnv:
        return SyncVectorEnv([KnownEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    gym.register("Same-v0", entry_point=KnownEnv, vector_entry_point=same_step)
    gym.register("Single-v0", entry_point=KnownEnv)
    for env_id in ("Same-v0", "Single-v0"):
        envs = make_vector_env(RegisteredEnv(env_id), 0, 3, test=False)
        assert isinstance(envs, SyncVectorEnv)
        assert (envs.num_envs, envs.autoreset_mode) == (3, AutoresetMode.NEXT_STEP)


# What an episode's end looks like ---------------------------------------------------------------


def cart_poles(native: bool) -> VectorEnv:
    """Two CartPoles of either kind, reset."""
    make_env = RegisteredEnv("CartPole-v1")
    envs = make_env.vector(2) if native else SyncVectorEnv([lambda: make_env(0, False)] * 2)
    assert isinstance(envs.unwrapped, CartPoleVectorEnv if native else SyncVectorEnv)
    return envs


def balance_first_only(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Keeps the first pole up for good, and lets the second fall at once."""
    return np.array([observation[0] @ (0.05, 0.1, 1.0, 0.5) > 0, 1], np.int64)


@pytest.mark.parametrize("native", [True, False])
def test_cart_pole_means_the_same(native: bool) -> None:
    """Reset on the step after the end, a reward for the last step, truncation at 500."""
    envs = cart_poles(native)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert envs.single_observation_space.shape == (4,)
    assert envs.single_observation_space.dtype == np.float32
    assert envs.single_action_space.n == 2
    observation, _ = envs.reset(seed=0)
    assert not np.array_equal(observation[0], observation[1])
    rewards, terminated, truncated, angles = [], [], [], []
    for _ in range(502):
        observation, *signals, _ = envs.step(balance_first_only(observation))
        for kept, values in zip((rewards, terminated, truncated), signals, strict=True):
            kept.append(values.copy())
        angles.append(observation[:, 2].copy())
    reward, end, cut, angle = map(np.array, (rewards, terminated, truncated, angles))

    # The first is cut off by its 500th step, which is paid; the next one resets.
    assert np.flatnonzero(cut[:, 0]).tolist() == [499]
    assert not end[:, 0].any()
    assert np.flatnonzero(reward[:, 0] == 0).tolist() == [500]

    # The second ends by itself; its final observation is the fallen pole, the next a fresh one.
    ends = np.flatnonzero(end[:-1, 1])
    assert not cut[:, 1].any()
    assert (np.diff(ends) > 2).all()  # an action after the end is not a step
    assert (np.abs(angle[ends, 1]) > 0.2).all()
    assert (np.abs(angle[ends + 1, 1]) <= 0.05).all()
    assert np.flatnonzero(reward[:, 1] == 0).tolist() == (ends + 1).tolist()
    envs.close()


# make_env by the user -----------------------------------------------------------------------------


class _Closable(KnownEnv):
    closings = 0

    def close(self) -> None:
        self.closings += 1


class _ClosableVector(SyncVectorEnv):
    closings = 0

    def close_extras(self, **kwargs: Any) -> None:
        self.closings += 1
        super().close_extras(**kwargs)


def test_make_env_is_called_once_for_each() -> None:
    """With the worker's index and the purpose; K calls make K environments."""
    calls = []

    def make_env(index: int, test: bool) -> gym.Env:
        calls.append((index, test))
        return KnownEnv(len(calls))

    envs = make_vector_env(make_env, 7, 3, test=True)
    observation, _ = envs.reset()
    assert calls == [(7, True)] * 3
    assert observation[:, 0].tolist() == [1, 2, 3]
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP


def test_vector_environment_of_make_env_is_used() -> None:
    """As it is, if it has K environments in the right mode."""
    given = SyncVectorEnv([KnownEnv] * 3)
    assert make_vector_env(lambda index, test: given, 0, 3, test=False) is given
    assert spaces_of(lambda index, test: given) == (
        given.single_observation_space,
        given.single_action_space,
    )


@pytest.mark.parametrize(
    ("count", "mode"),
    [(3, AutoresetMode.SAME_STEP), (3, AutoresetMode.DISABLED), (2, AutoresetMode.NEXT_STEP)],
)
def test_other_vector_environment_is_refused(count: int, mode: AutoresetMode) -> None:
    """Another autoreset mode or number of environments: a message with both, and it is closed."""
    given = _ClosableVector([KnownEnv] * count, autoreset_mode=mode)
    with pytest.raises(
        ValueError,
        match=rf"{count} in mode .*{mode.name}.* are 3 .envs_per_worker. in mode .*NEXT_STEP",
    ):
        make_vector_env(lambda index, test: given, 0, 3, test=False)
    assert given.closings == 1


def test_half_made_vector_environment_is_closed() -> None:
    """If the third constructor fails, the two environments before it are closed."""
    made: list[_Closable] = []

    def make_env(index: int, test: bool) -> gym.Env:
        if len(made) == 2:
            return FailingEnv("constructor")
        made.append(_Closable())
        return made[-1]

    with pytest.raises(Exception, match="broken in constructor"):
        make_vector_env(make_env, 0, 3, test=False)
    assert [env.closings for env in made] == [1, 1]


def test_environment_that_was_made_already_is_one_of_them() -> None:
    """And where it is of no use, it is closed."""
    first = _Closable(7)
    envs = make_vector_env(lambda index, test: _Closable(8), 0, 2, test=True, first=first)
    observation, _ = envs.reset()
    assert observation[:, 0].tolist() == [7, 8]
    envs.close()
    assert first.closings == 1

    first = _Closable()
    make_vector_env(RegisteredEnv("CartPole-v1"), 0, 2, test=True, first=first).close()
    assert first.closings == 1


# Ends that come from outside --------------------------------------------------------------------


class _SaysReset(KnownEnv):
    """Says after its second step that it needs a reset, in the manner of ChainerRL."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | {"needs_reset": len(self.history) % 2 == 0}


@pytest.mark.parametrize(
    ("kind", "limit", "lengths"),
    [(KnownEnv, 3, [3, 3]), (KnownEnv, None, [5, 5]), (_SaysReset, None, [2, 2])],
)
def test_episode_is_truncated(kind: type[KnownEnv], limit: int | None, lengths: list[int]) -> None:
    """After `max_episode_len` steps, or where info says so; the next one is as long again."""
    env = kind()
    envs = make_vector_env(lambda index, test: env, 0, 1, False, max_episode_len=limit)
    envs.reset()
    ends, steps = [], 0
    while len(ends) < 2:
        _, _, terminated, truncated, _ = envs.step(np.array([0]))
        steps += 1
        assert not terminated[0]
        if truncated[0]:
            ends.append(steps)
            envs.step(np.array([0]))  # resets
            steps = 0
    assert ends == lengths


def test_termination_goes_before_the_limit() -> None:
    """An episode that ends by itself on its last allowed step has terminated."""
    env = KnownEnv(rewards=(1.0,) * 3, ending="terminated")
    envs = make_vector_env(lambda index, test: env, 0, 1, False, max_episode_len=3)
    runner = EnvRunner(envs, 3)
    runner.begin_rollout()
    for _ in range(3):
        runner.step(np.array([0]))
    signals = runner.finish_rollout()
    assert signals[TERMINATED, :, 0].tolist() == [0, 0, 1]
    assert not signals[TRUNCATED].any()


def test_limit_of_a_registered_environment() -> None:
    """It is stepped one by one then, since its own vector form has no such limit."""
    envs = make_vector_env(RegisteredEnv("CartPole-v1"), 0, 2, False, max_episode_len=2)
    envs.reset(seed=0)
    envs.step(np.array([0, 0]))
    assert envs.step(np.array([0, 0]))[3].all()


def test_limit_of_a_vector_environment_is_refused() -> None:
    """Its episodes cannot be cut from outside: a message that says so, and it is closed."""
    given = _ClosableVector([KnownEnv] * 3)
    with pytest.raises(ValueError, match=r"max_episode_len is 9, .* return one environment"):
        make_vector_env(lambda index, test: given, 0, 3, False, max_episode_len=9)
    assert given.closings == 1


# Checked in the main thread --------------------------------------------------------------------


class _OldReset(_Closable):
    def reset(self, **settings: Any) -> Any:
        return super().reset(**settings)[0]


class _OtherShape(_Closable):
    def reset(self, **settings: Any) -> Any:
        return np.zeros(2, np.float32), {}


class _TwoRewards(_Closable):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:1], np.zeros(2), False, False, {}


class _OldStep(OldStyleEnv, _Closable):
    pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_OldStep, "step returned 4 values, the old Gym interface"),
        (_OldReset, r"reset returned a ndarray; .*\(observation, info\)"),
        (_OtherShape, r"observation has the shape \(2,\), but its space says \(11,\)"),
        (_TwoRewards, r"reward array\(\[0., 0.\]\), not a number"),
    ],
)
def test_faulty_environment(kind: type[_Closable], message: str) -> None:
    """One line that names the class and what is wrong; the environment is closed."""
    env = kind()
    with pytest.raises(ValueError, match=message) as raised:
        spaces_of(lambda index, test: env)
    assert str(raised.value).startswith(kind.__name__)
    assert "\n" not in str(raised.value)
    assert env.closings == 1


@pytest.mark.parametrize("limit", [None, 10])
def test_faulty_environment_in_wrappers(limit: int | None) -> None:
    """A registered one gets the same line, though Gymnasium's wrappers unpack its step first."""
    gym.register("Old-v0", entry_point=OldStyleEnv, max_episode_steps=limit)
    with pytest.raises(ValueError, match=r"Old-v0.step returned 4 values, the old Gym interface"):
        spaces_of(RegisteredEnv("Old-v0"))


@pytest.mark.parametrize("thing", [None, 3, "CartPole-v1"])
def test_no_environment(thing: Any) -> None:
    """A `make_env` that returns something else is told so."""
    with pytest.raises(ValueError, match=r"not a gymnasium\.Env"):
        spaces_of(lambda index, test: thing)


@pytest.mark.parametrize("where", ["constructor", "reset", 0])
def test_error_of_the_environment_itself(where: Any) -> None:
    """It comes through as it is."""
    with pytest.raises(ValueError, match=f"^broken in {where}$"):
        spaces_of(lambda index, test: FailingEnv(where, ValueError))


def test_sound_environment() -> None:
    """Its spaces are returned, and it is closed."""
    env = _Closable()
    assert spaces_of(lambda index, test: env) == (env.observation_space, env.action_space)
    assert env.closings == 1
