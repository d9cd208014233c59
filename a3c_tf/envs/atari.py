"""Atari games as agents see them: four grey frames of 84 x 84, by ale-py or by Gymnasium.

An observation is [84, 84, 4] bytes, the newest frame last: what convolutions want on a CPU. To put
the bytes so is cheaper than to transpose floats in the net, in acting and again in learning.

A step is four frames of the game under one action. Rewards are the game's own points. A lost life
is reported as `info["life_lost"]`, not as an episode's end: in training nothing is learned across
it, but the game goes on, so that scores are those of whole games.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)

FRAME_SKIP = 4
FRAMES = 4  # in one observation
SIZE = 84  # pixels
MAX_NOOPS = 30
MAX_STEPS = 27_000  # of one game: half an hour at 60 frames a second
STICKINESS = 0.25  # probability that a sticky action repeats the last one (arXiv:1709.06009)

# Arguments of ale-py's environment that are decided here, for all games.
FIXED = {"frameskip", "repeat_action_probability", "max_num_frames_per_episode"}

SPACE = gym.spaces.Box(0, 255, (SIZE, SIZE, FRAMES), np.uint8)

ENTRY_POINT = "ale_py.env:AtariEnv"


def is_atari(spec: EnvSpec) -> bool:
    """Whether an environment is an Atari game seen as pixels, whatever its id's version."""
    pixels = spec.kwargs.get("obs_type", "rgb") == "rgb" and not spec.kwargs.get("sound_obs")
    return spec.entry_point == ENTRY_POINT and pixels and not spec.kwargs.get("continuous")


def make_atari(spec: EnvSpec, sticky_actions: bool, noops: int = MAX_NOOPS) -> gym.Env:
    """One game, preprocessed by Gymnasium. What the id says of frame skips is not used.

    Frame by frame it is what `make_atari_vector` gives, but for chance (sticky actions; the no-ops
    before an episode, here 1 to `noops`, there one less) and for the last frame before the limit of
    steps, which is missing there.

    Args:
        spec: of any version of the game.
        sticky_actions: each frame repeats the last action with probability 0.25.
        noops: at most so many frames pass before an episode's first observation.
    """
    _no_banner()
    game: gym.Env = gym.make(
        spec,
        disable_env_checker=True,
        frameskip=1,  # else frames would be skipped twice
        repeat_action_probability=STICKINESS * sticky_actions,
        max_num_frames_per_episode=None,  # it would count the no-ops too
    )
    if sticky_actions:
        game = _Reseeded(game)
    game = AtariPreprocessing(_FireReset(game), noops, FRAME_SKIP, SIZE)
    game = _LostLives(TimeLimit(game, MAX_STEPS))
    return TransformObservation(
        FrameStackObservation(game, FRAMES, padding_type="zero"), _channels_last, SPACE
    )


def make_atari_vector(
    spec: EnvSpec, count: int, sticky_actions: bool, noops: int = MAX_NOOPS
) -> VectorEnv | None:
    """`count` games, played and preprocessed by ale-py's own threads; see `make_atari`.

    None for a variant of a game (a mode or difficulty), which ale-py does not offer in this form.
    """
    from ale_py.vector_env import AtariVectorEnv

    if any(spec.kwargs.get(name) is not None for name in ("mode", "difficulty")):
        return None
    games = AtariVectorEnv(
        spec.kwargs["game"],
        count,
        num_threads=1,  # workers share the cores among themselves
        max_num_frames_per_episode=MAX_STEPS * FRAME_SKIP,
        repeat_action_probability=STICKINESS * sticky_actions,
        full_action_space=spec.kwargs.get("full_action_space", False),
        img_height=SIZE,
        img_width=SIZE,
        stack_num=FRAMES,
        frameskip=FRAME_SKIP,
        noop_max=noops,
        reward_clipping=False,  # the learner clips
        use_fire_reset=True,
    )
    games.spec = spec
    return _VectorGames(games)


def _channels_last(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[4, 84, 84] to [84, 84, 4]."""
    return np.ascontiguousarray(np.moveaxis(frames, 0, -1))


def _no_banner() -> None:
    """Keeps ale-py from writing its name and version for every game."""
    from ale_py import ALEInterface, LoggerMode

    ALEInterface.setLoggerMode(LoggerMode.Error)


class _Reseeded(gym.Wrapper):
    """Seeds each game from `np_random`: what ale-py draws can then be repeated from there."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            seed = int(self.unwrapped.np_random.integers(2**31))
        return self.env.reset(seed=seed, options=options)


class _FireReset(gym.Wrapper):
    """Presses FIRE after a reset, for the games that wait for it."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        meanings: list[str] = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        if self._fire is not None:
            observation, _, _, _, info = self.env.step(self._fire)
        return observation, info


class _LostLives(gym.Wrapper):
    """Says in `info["life_lost"]` whether a step cost a life, but not the last one."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._lives = info["lives"]
        return observation, info | {"life_lost": False}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lost = 0 < info["lives"] < self._lives
        self._lives = info["lives"]
        return observation, reward, terminated, truncated, info | {"life_lost": lost}


class _VectorGames(VectorWrapper):
    """`_LostLives` and `_channels_last` for several games at once."""

    def __init__(self, games: VectorEnv) -> None:
        super().__init__(games)
        self.single_observation_space = SPACE
        self.observation_space = batch_space(SPACE, games.num_envs)
        from cv2 import merge

        self._merge = merge  # NumPy's own way takes four times as long

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            seed %= 2**31 - self.num_envs  # ale-py's seeds have 31 bits
        observations, info = self.env.reset(seed=seed, options=options)
        self._lives: npt.NDArray[Any] = info["lives"].copy()
        return self._observe(observations), info | {"life_lost": np.zeros(self.num_envs, np.bool_)}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        lives = info["lives"]
        lost = (lives > 0) & (lives < self._lives)  # a new game has no fewer than the last one
        self._lives = lives.copy()
        info = info | {"life_lost": lost}
        return self._observe(observations), rewards, terminated, truncated, info

    def _observe(self, stacks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """[K, 4, 84, 84] to [K, 84, 84, 4], in a new array."""
        observations = np.empty((len(stacks), SIZE, SIZE, FRAMES), np.uint8)
        for stack, observation in zip(stacks, observations, strict=True):
            self._merge(tuple(stack), observation)
        return observations
