"""Masks of actions that environments report in `info`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import SyncVectorEnv

from a3c_tf.envs.factory import RegisteredEnv, make_vector_env, spaces_of
from a3c_tf.envs.masks import MaskFromInfo, sample_action
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.envs.trial import check_env
from a3c_tf.evaluation import Evaluator
from tests.envs import KnownEnv
from tests.helpers import make_agent

HERE = Box(0.0, 9.0, (1,))


class _Rules(gym.Env):
    """Refuses actions that its own mask forbids; shows the number of the step.

    Args:
        space: the action space.
        masks: of the steps, as they are reported; the last one for all that follow. None is left
            out of the info.
        observation_space: a Dict with an "action_mask" gets the mask as well.
    """

    def __init__(self, space: gym.Space, *masks: Any, observation_space: gym.Space = HERE) -> None:
        self.action_space = space
        self.observation_space = observation_space
        self.closed = False
        self._masks = masks
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._step = 0
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step; the third one is the last."""
        assert self.action_space.contains(action)
        mask = self._info().get("action_mask")
        if isinstance(self.action_space, Discrete) and mask is not None:
            assert mask[action - self.action_space.start]
        self._step += 1
        return self._observe(), 1.0, self._step == 3, False, self._info()

    def close(self) -> None:
        """Only notes it."""
        self.closed = True

    def _observe(self) -> Any:
        here = np.array([self._step], np.float32)
        if not isinstance(self.observation_space, Dict):
            return here
        shown = {"here": here, "action_mask": np.array(self._masks[0], np.int8)}
        return {name: shown[name] for name in self.observation_space}

    def _info(self) -> dict[str, Any]:
        mask = self._masks[min(self._step, len(self._masks) - 1)]
        return {} if mask is None else {"action_mask": mask}


def masks_of(env: gym.Env, steps: int = 3) -> list[list[int]]:
    """What the wrapped environment's observations say; each must be in its space."""
    observation, _ = env.reset()
    observations = [observation]
    for _ in range(steps):
        action = sample_action(env.action_space, observation["action_mask"])
        observation, *_ = env.step(action)
        observations.append(observation)
    assert all(env.observation_space.contains(o) for o in observations)
    assert all(
        o["action_mask"].dtype == env.observation_space["action_mask"].dtype for o in observations
    )
    assert [o["observation"][0] for o in observations] == list(range(steps + 1))
    return [o["action_mask"].tolist() for o in observations]


# The wrapper ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.array, list, tuple, lambda mask: np.array(mask, bool)])
def test_mask_becomes_observation(kind: Callable[[Any], Any]) -> None:
    """Step by step, whatever it is written in; where there is none, everything is allowed."""
    env = MaskFromInfo(_Rules(Discrete(3, start=5), kind([0, 1, 1]), kind([1, 0, 0]), None))
    assert env.observation_space == Dict({"observation": HERE, "action_mask": MultiBinary(3)})
    assert masks_of(env) == [[0, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("nvec", "mask"),
    [
        ([2, 3], [1, 0, 0, 1, 1]),
        ([2, 3], (np.array([1, 0]), np.array([0, 1, 1]))),
        ([[2], [3]], ((np.array([1, 0]),), (np.array([0, 1, 1]),))),
    ],
)
def test_several_choices(nvec: Any, mask: Any) -> None:
    """One mask after the other, from one array or from what `MultiDiscrete.sample` takes."""
    env = MaskFromInfo(_Rules(MultiDiscrete(nvec), mask))
    assert masks_of(env) == [[1, 0, 0, 1, 1]] * 4


def test_dict_observation_is_kept_as_it_is() -> None:
    """Below "observation", like any other."""
    inner = Dict({"here": HERE})
    env = MaskFromInfo(_Rules(Discrete(2), [0, 1], observation_space=inner))
    assert env.observation_space == Dict({"observation": inner, "action_mask": MultiBinary(2)})
    observation, _ = env.reset()
    assert observation["observation"].keys() == {"here"}
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 1])])
@pytest.mark.parametrize("masks", [([1, 1],), ([1, 1, 1], [1] * 4)])
def test_mask_of_another_length(space: gym.Space, masks: Any) -> None:
    """One line that names the environment and both lengths, from a reset and from a step."""
    env = MaskFromInfo(_Rules(space, *masks))
    with pytest.raises(ValueError, match=r"_Rules.* length [24] for 3 actions$") as raised:
        masks_of(env)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("space", [Box(-1.0, 1.0, (2,)), MultiBinary(2)])
def test_actions_without_masks(space: gym.Space) -> None:
    """One line that names the environment and the space."""
    env = _Rules(space, [1, 1])
    with pytest.raises(ValueError, match=r"_Rules.* action_mask for actions (Box|MultiBinary)"):
        MaskFromInfo(env)
    with pytest.raises(ValueError, match="is no mask for actions"):
        sample_action(space, np.ones(2, np.int8))


# Drawing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (Discrete(4), [0, 1, 0, 1], {1, 3}),
        (Discrete(4, start=-2), [0, 1, 0, 1], {-1, 1}),
        (Discrete(2), [0, 0], {0, 1}),
        (MultiDiscrete([2, 3]), [0, 1, 1, 0, 1], {(1, 0), (1, 2)}),
        (MultiDiscrete([2, 3], start=[4, 5]), [1, 0, 0, 1, 1], {(4, 6), (4, 7)}),
        (MultiDiscrete([[2], [2]]), [1, 1, 0, 1], {(0, 1), (1, 1)}),
    ],
)
def test_allowed_actions_are_drawn(space: Any, mask: Any, allowed: set[Any]) -> None:
    """Each of them, and no other; of nothing but forbidden ones any."""
    space.seed(0)
    drawn = [sample_action(space, np.array(mask, np.int8)) for _ in range(50)]
    assert all(space.contains(action) for action in drawn)
    flat = [np.ravel(action).tolist() for action in drawn]
    assert {tuple(a) if len(a) > 1 else a[0] for a in flat} == allowed


# On the way to a worker -----------------------------------------------------------------------


def strict(index: int, test: bool) -> gym.Env:
    """Allows one action of many: a random one would hardly be allowed."""
    return _Rules(Discrete(1000), np.arange(1000) == 777)


def test_check_finds_masks() -> None:
    """The spaces are those of the wrapped environment; its trial step is an allowed one."""
    observation_space, action_space = spaces_of(strict)
    assert observation_space == Dict({"observation": HERE, "action_mask": MultiBinary(1000)})
    assert action_space == Discrete(1000)


def test_check_of_masks_in_observations() -> None:
    """These stay as they are, also if the info has them too; the trial step is an allowed one."""
    space = Dict({"here": HERE, "action_mask": MultiBinary(1000)})
    mask = (np.arange(1000) == 777).astype(np.int8)
    env = _Rules(Discrete(1000), mask, observation_space=space)
    assert check_env(env) == (space, Discrete(1000))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (_Rules(Discrete(3), [1, 1]), "length 2 for 3 actions"),
        (_Rules(Discrete(3), [1, 1, 1], [1, 1]), "length 2 for 3 actions"),
        (_Rules(MultiBinary(2), [1, 1]), r"action_mask for actions MultiBinary\(2\)"),
        (
            _Rules(
                Discrete(3), [1], observation_space=Dict({"here": HERE, "action_mask": HERE})
            ),
            r"length 1 is no mask for actions Discrete\(3\)",
        ),
    ],
)  # fmt: skip
def test_check_refuses(env: _Rules, message: str) -> None:
    """One line that names the environment, which is closed."""
    with pytest.raises(ValueError, match=f"_Rules.*{message}$") as raised:
        check_env(env)
    assert "\n" not in str(raised.value)
    assert env.closed


def test_vector_environment_of_the_user_is_refused() -> None:
    """Its masks cannot be put into its observations from outside."""
    envs = SyncVectorEnv([lambda: strict(0, False)] * 2)
    with pytest.raises(ValueError, match=r"^SyncVectorEnv .* let make_env return one environment"):
        check_env(envs)
    with pytest.raises(ValueError, match=r"^SyncVectorEnv .* let make_env return one environment"):
        make_vector_env(lambda index, test: envs, 0, 2, False, masked=True)


def test_vector_environment() -> None:
    """Each environment is wrapped, below the limit of steps, and reset on the step after an end."""
    masks = ([0, 1], None), ([1, 0], [0, 1])
    made: list[gym.Env] = []

    def make_env(index: int, test: bool) -> gym.Env:
        made.append(_Rules(Discrete(2), *masks[len(made)]))
        return made[-1]

    envs = make_vector_env(make_env, 0, 2, False, max_episode_len=2, masked=True)
    assert isinstance(envs, SyncVectorEnv)
    assert isinstance(envs.envs[0].unwrapped, _Rules)
    assert type(envs.envs[0].env) is MaskFromInfo
    observation, _ = envs.reset()
    assert observation["action_mask"].tolist() == [[0, 1], [1, 0]]
    observation, *_ = envs.step(np.array([1, 0]))
    assert observation["action_mask"].tolist() == [[1, 1], [0, 1]]
    observation, _, _, truncated, _ = envs.step(np.array([0, 1]))
    assert truncated.all()
    assert observation["observation"].tolist() == [[2], [2]]
    observation, *_ = envs.step(np.array([0, 0]))  # resets
    assert observation["action_mask"].tolist() == [[0, 1], [1, 0]]
    assert observation["observation"].tolist() == [[0], [0]]


def test_masks_in_observations_stay() -> None:
    """They are not put into a Dict once more."""
    space = Dict({"here": HERE, "action_mask": MultiBinary(2)})

    def make_env(index: int, test: bool) -> gym.Env:
        return _Rules(Discrete(2), [0, 1], observation_space=space)

    assert make_vector_env(make_env, 0, 2, False, masked=True).single_observation_space == space
    envs = SyncVectorEnv([lambda: make_env(0, False)] * 2)
    assert make_vector_env(lambda index, test: envs, 0, 2, False, masked=True) is envs


def test_native_vector_environment_is_not_taken() -> None:
    """One that the id offers would have the masks in its infos."""
    envs = make_vector_env(RegisteredEnv("CartPole-v1"), 0, 2, False, masked=True)
    observation, _ = envs.reset(seed=0)
    assert observation["observation"].shape == (2, 4)
    assert observation["action_mask"].tolist() == [[1, 1]] * 2


def test_without_masks() -> None:
    """Nothing is wrapped."""
    env = KnownEnv()
    assert check_env(env) == (env.observation_space, env.action_space)
    envs = make_vector_env(lambda index, test: KnownEnv(), 0, 2, False)
    assert envs.single_observation_space == env.observation_space


# Nothing is allowed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (Discrete(2, start=5), [0, 0]),
        (MultiDiscrete([2, 3]), [1, 1, 0, 0, 0]),
        (MultiDiscrete([[2], [3]]), [0, 0, 0, 0, 1]),
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_no_action_is_allowed(space: gym.Space, mask: list[int], step: int) -> None:
    """The second environment has not ended, but no action is left for one of its choices."""
    everything = [1] * len(mask)
    masks = [(everything,), (*[everything] * step, mask)]
    envs = make_vector_env(lambda i, t: _Rules(space, *masks.pop(0)), 0, 2, False, masked=True)
    runner = EnvRunner(envs, 3, seed=0)
    runner.begin_rollout()
    if step:
        runner.step(np.array([space.sample()] * 2))
    assert isinstance(runner.error, ValueError)
    assert re.search("environment 1, .*_Rules.*, forbids all actions", str(runner.error))
    assert "\n" not in str(runner.error)


def test_at_the_end_nothing_need_be_allowed() -> None:
    """Nor is it looked at which of many environments goes on."""
    envs = make_vector_env(
        lambda i, t: _Rules(Discrete(2), [1, 0], [0, 1], [1, 1], [0, 0]), 0, 2, False, masked=True
    )
    runner = EnvRunner(envs, 5, seed=0)
    runner.begin_rollout()
    for action in (0, 1, 0, 0, 0):
        runner.step(np.array([action, action]))
    assert runner.error is None


def test_no_action_is_allowed_in_an_evaluation() -> None:
    """Said there too."""

    def make_env(index: int, test: bool) -> gym.Env:
        return _Rules(Discrete(2), [1, 1], [0, 0])

    agent = make_agent(MaskFromInfo(make_env(0, True)))
    with pytest.raises(ValueError, match=r"environment 0, .*_Rules.*, forbids all actions"):
        Evaluator(agent, make_env, 1, seed=0).run()
