"""Hooks: functions of the user's that a run calls as it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from a3c_tf.agents.base import Agent

# hook(env, agent, step), called for every global step
GlobalStepHook = Callable[[Any, Agent, int], object]
# setter(env, agent, value)
Setter = Callable[[Any, Agent, float], object]


class StepHook(ABC):
    """A hook that is called once for every global step, in rising order.

    Any function of the same arguments will do as well. It runs where the global weights are, one
    call at a time: what it does to the agent reaches all workers with their next pull, and while
    it runs, no worker can push. A resumed run calls it for its own steps only, and begins with
    the hyper-parameters of the agent that it is given.
    """

    @abstractmethod
    def __call__(self, env: Any, agent: Agent, step: int) -> object:
        """Does something at a global step.

        Args:
            env: the vector environment of the worker that took the step, if it is a thread;
                None if it runs elsewhere.
            agent: whose nets are the global ones.
            step: the global step.
        """


class LinearInterpolationHook(StepHook):
    """Moves a value in a straight line, and leaves it at its end.

    For the learning rate and other scheduled hyper-parameters a `Schedule` does this without a
    hook. With one: `setter = lambda env, agent, value: agent.change(learning_rate=value)`.

    Args:
        total_steps: global step from which on the value is `stop_value`.
        start_value: value at global step 1 and before.
        stop_value: value from `total_steps` on.
        setter: `setter(env, agent, value)` sets it.
    """

    def __init__(
        self, total_steps: int, start_value: float, stop_value: float, setter: Setter
    ) -> None:
        self.total_steps = total_steps
        self.start_value = start_value
        self.stop_value = stop_value
        self.setter = setter

    def __call__(self, env: Any, agent: Agent, step: int) -> None:
        """Sets the value of this step."""
        line = [1, self.total_steps], [self.start_value, self.stop_value]
        self.setter(env, agent, float(np.interp(step, *line)))
