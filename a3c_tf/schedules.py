"""Hyper-parameters that change with the global step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A straight line from `start` at step 0 to `stop` at step `steps`, and `stop` after that.

    Attributes:
        start: value at global step 0.
        stop: value from global step `steps` on.
        steps: length of the line in global steps; 0 for a constant `stop`.
    """

    start: float
    stop: float
    steps: int

    @classmethod
    def constant(cls, value: float) -> Schedule:
        """A schedule with the same value at every step.

        Args:
            value: the value.
        """
        return cls(value, value, 0)

    def __call__(self, global_step: int) -> float:
        """The value at a global step; never beyond `stop`, however far the step.

        Args:
            global_step: environment steps of all workers so far.
        """
        if global_step >= self.steps:
            return self.stop
        return self.start + (self.stop - self.start) * global_step / self.steps
