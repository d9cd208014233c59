"""Tiny environments in which every number is known beforehand.

Importable, so that other processes can make them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

MAX_LENGTH = 8  # of a `KnownEnv`'s episodes
STEP = 2  # where the one-hot of the step begins in a `KnownEnv`'s observation

Ending = Literal["terminated", "truncated", "both"]
Observation = npt.NDArray[np.float32]


class Transition(NamedTuple):
    """One step that an environment has taken; `action` is as the environment got it."""

    observation: Observation
    action: int
    reward: Any
    terminated: bool
    truncated: bool
    next_observation: Observation


class KnownEnv(gym.Env[Observation, np.int64]):
    """Episodes with given rewards, whatever the actions.

    An observation is (worker, episode, one-hot of the step): no two of a run are equal, and a
    linear value net on it is a table of values by step. `where_is` reads it.

    Args:
        worker: the observation's first number.
        rewards: what the steps of an episode return, as they are (int, bool, an array, ...);
            their number is the episode's length.
        ending: what the last step says.
        start: of the action space, `Discrete(2, start=start)`.
        alias: return one and the same array each time, written over.
        on_step: called before every step.

    Attributes:
        history: all steps taken, resets left out.
        seeds: what `reset` was given, one for each episode.
        closed: whether `close` was called.
    """

    def __init__(
        self,
        worker: float = 0,
        rewards: Sequence[Any] = (1.0,) * 5,
        ending: Ending = "truncated",
        start: int = 0,
        alias: bool = False,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (STEP + MAX_LENGTH + 1,))
        self.action_space = gym.spaces.Discrete(2, start=start)
        self.history: list[Transition] = []
        self.seeds: list[int | None] = []
        self.closed = False
        self._worker = worker
        self._rewards = rewards
        self._ending = ending
        self._on_step = on_step
        self._episode = -1
        self._step = 0
        self._array = np.zeros(STEP + MAX_LENGTH + 1, np.float32) if alias else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the next episode."""
        self.seeds.append(seed)
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Takes one step."""
        self._on_step()
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        observation = self._observe().copy()
        reward = self._rewards[self._step]
        self._step += 1
        ended = self._step == len(self._rewards)
        terminated = ended and self._ending in ("terminated", "both")
        truncated = ended and self._ending in ("truncated", "both")
        self.history.append(
            Transition(
                observation, int(action), reward, terminated, truncated, self._observe().copy()
            )
        )
        return self._observe(), reward, terminated, truncated, {}

    def close(self) -> None:
        """Only notes it."""
        self.closed = True

    def _observe(self) -> Observation:
        array = np.empty(STEP + MAX_LENGTH + 1, np.float32) if self._array is None else self._array
        array[:] = 0.0
        array[0] = self._worker
        array[1] = self._episode
        array[STEP + self._step] = 1.0
        return array


def where_is(observation: npt.NDArray[Any]) -> tuple[int, int, int]:
    """The worker, the episode and the step that a `KnownEnv`'s observation tells."""
    return int(observation[0]), int(observation[1]), int(np.argmax(observation[STEP:]))


class BrokenEnvError(Exception):
    """What a `FailingEnv` raises."""


class FailingEnv(KnownEnv):
    """Raises in its constructor, in every reset, or on one of its steps.

    Args:
        where: "constructor", "reset", or how many steps go well before one does not.
        error: what is raised.
        settings: of `KnownEnv`.
    """

    def __init__(
        self,
        where: Literal["constructor", "reset"] | int,
        error: type[BaseException] = BrokenEnvError,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._where = where
        self._error = error
        self._fail_if(where == "constructor")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the next episode."""
        self._fail_if(self._where == "reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Takes one step."""
        self._fail_if(self._where == len(self.history))
        return super().step(action)

    def _fail_if(self, failing: bool) -> None:
        if failing:
            raise self._error(f"broken in {self._where}")


class BadNumbersEnv(KnownEnv):
    """One step's observation or reward is not what it should be.

    Args:
        array: which: "observation" or "reward"; or "shape", an observation that is cut short.
        value: what is in it.
        at: how many steps go well before.
    """

    def __init__(self, array: str, value: float, at: int) -> None:
        super().__init__()
        self._bad = array, value, at

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Takes one step."""
        array, value, at = self._bad
        observation, reward, *rest = super().step(action)
        if len(self.history) == at + 1:
            if array == "reward":
                reward = value
            elif array == "observation":
                observation = observation.copy()
                observation[3] = value
            else:
                observation = observation[:3]
        return observation, reward, *rest


class OldStyleEnv(KnownEnv):
    """Returns four values from `step`, as Gym did up to version 0.21."""

    def step(self, action: Any) -> Any:
        """Takes one step."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class ABCEnv(gym.Env[Observation, np.int64]):
    """The letters A, B, C, ... are shown one after the other; the i-th wants the i-th action.

    The right action on the last letter is worth 1 and ends the episode; a wrong one ends it
    with nothing. The best mean return is 1, that of random actions is letters ** -letters.

    Args:
        letters: how many there are, and how many actions.
        start: the number of the first action.
    """

    OPTIMUM = 1.0

    def __init__(self, letters: int = 3, start: int = 0) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (letters,))
        self.action_space = gym.spaces.Discrete(letters, start=start)
        self._letters = letters
        self._start = start
        self._letter = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the next episode."""
        self._letter = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        right = action - self._start == self._letter
        spelled = right and self._letter == self._letters - 1
        if right and not spelled:
            self._letter += 1
        return self._observe(), float(spelled), bool(spelled or not right), False, {}

    def _observe(self) -> Observation:
        return np.eye(self._letters, dtype=np.float32)[self._letter]


class MatchEnv(gym.Env[Observation, Any]):
    """One step: shows which of some actions it wants, and pays for how close the action is.

    For a Box it pays 1 - 2 |action - wanted| / range, the mean over the numbers; else the share of
    choices that are right. Refuses actions that are not in its space.

    Args:
        space: the action space.
        targets: how many actions it may want, drawn from the space.
    """

    def __init__(self, space: gym.Space, targets: int = 3) -> None:
        space.seed(7)
        self.action_space = space
        self.observation_space = gym.spaces.Box(0.0, 1.0, (targets,))
        self._targets = [np.asarray(space.sample()) for _ in range(targets)]
        self._wanted = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Shows what is wanted."""
        super().reset(seed=seed)
        self._wanted = int(self.np_random.integers(len(self._targets)))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Pays, and ends the episode."""
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        wanted = self._targets[self._wanted]
        if isinstance(self.action_space, gym.spaces.Box):
            width = self.action_space.high - self.action_space.low
            reward = float(np.mean(1.0 - 2.0 * np.abs(action - wanted) / width))
        else:
            reward = float(np.mean(action == wanted))
        return self._observe(), reward, True, False, {}

    def _observe(self) -> Observation:
        return np.eye(len(self._targets), dtype=np.float32)[self._wanted]


class RememberEnv(gym.Env[Observation, np.int64]):
    """Shows one of two cues at first, then nothing, and then asks which one it was.

    The right answer is worth 1. Who does not remember gets 0.5 on average.

    Args:
        pause: how many observations show nothing.
    """

    def __init__(self, pause: int = 2) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (3,))  # cue 0, cue 1, the question
        self.action_space = gym.spaces.Discrete(2)
        self._pause = pause
        self._cue = 0
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Shows a cue."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Pays for the answer to the question, which ends the episode."""
        asked = self._step > self._pause
        self._step += 1
        return self._observe(), float(asked and action == self._cue), asked, False, {}

    def _observe(self) -> Observation:
        observation = np.zeros(3, np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        observation[2] = self._step == self._pause + 1
        return observation


class WordsEnv(gym.Env[str, np.int64]):
    """Observations of a kind that is not trained on."""

    observation_space = gym.spaces.Text(5)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Says a word."""
        super().reset(seed=seed)
        return "a", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Says another one."""
        return "b", 0.0, True, False, {}
