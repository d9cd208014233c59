"""What a worker says about itself, and how it looks to the driver and the monitor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from a3c_tf.envs.runner import Episode

GRADIENT_NORM = "train/gradient_norm"
TIMES = ("act", "env", "learn", "push", "wait")  # where a worker's time goes


@dataclass
class Report:
    """What a worker did since its last report.

    Attributes:
        iterations: how many gradients it pushed.
        steps: valid environment steps.
        statistics: sums over the iterations, in the order of `Worker.statistics`.
        lag: sum over the iterations.
        act, env, learn, push, wait: seconds spent in the policy net and on the way to and from
            the environments, in the environments, on the gradients, on the exchange of weights,
            and waiting for other workers.
    """

    statistics: npt.NDArray[np.float64] | float = 0.0
    iterations: int = 0
    steps: int = 0
    lag: int = 0
    act: float = 0.0
    env: float = 0.0
    learn: float = 0.0
    push: float = 0.0
    wait: float = 0.0

    def add(self, other: Report) -> None:
        """Adds what another report says to this one."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class RunningWorker(Protocol):
    """A worker as the driver and the monitor see it, wherever it runs.

    Attributes:
        index: which worker it is.
        name: in log lines.
        statistics: names of what its reports hold.
    """

    index: int
    name: str
    statistics: tuple[str, ...]

    @property
    def beats(self) -> int:
        """Rises with every step that it makes."""

    @property
    def active(self) -> bool:
        """Whether it should be making steps: not while it waits for its turn, or has ended."""

    def stack(self) -> str:
        """Where it is in its program, as text."""

    def state(self) -> dict[str, Any]:
        """Where it is between two rollouts; of workers that take turns only."""

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Iterates, in the calling thread or on its behalf, until done or told to stop."""

    def take_report(self) -> Report:
        """What it did since the last call."""

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call."""
