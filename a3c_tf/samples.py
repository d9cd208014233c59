"""A sample of what an agent does and expects while it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from a3c_tf.agents.base import Agent
from a3c_tf.evaluation import Step
from a3c_tf.graphs import CompiledFunction, Tensor
from a3c_tf.quiet import tf
from a3c_tf.thinning import Thinned

STEPS = 2_000  # of all environments together, at most


class _Seen(NamedTuple):
    actions: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]


class Sample:
    """Actions, values and one-step advantages of some steps of an evaluation.

        A_t = r_t + gamma * V(s_{t+1}) * (1 - terminated_t) - V(s_t)

    with the rewards that are learned. The steps are evenly spread over the evaluation, reset steps
    left out. The graph is compiled in the constructor, in the main thread.

    Args:
        agent: that is evaluated.
        envs: K, environments that the evaluation steps together.
        clock: in seconds.

    Attributes:
        seconds: spent on it.
    """

    def __init__(self, agent: Agent, envs: int, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._agent = agent
        self._envs = envs
        self._clock = clock
        self._steps: Thinned[_Seen] = Thinned(max(1, STEPS // envs))
        self._judge = self._compile() if type(agent).values is not Agent.values else None

    def clear(self) -> None:
        """Begins a new one."""
        self.seconds = 0.0
        self._steps = Thinned(max(1, STEPS // self._envs))

    def see(self, step: Step) -> None:
        """Called after every step of the evaluation."""
        if not self._steps.wanted():
            return
        start = self._clock()
        nothing = np.zeros(0, np.float32)
        values, advantages = nothing, nothing
        if self._judge is not None:
            judged = self._judge(
                *step.inputs,
                tf.constant(step.rewards, tf.float32),
                tf.constant(step.terminated, tf.float32),
                step.state,
                *map(tf.constant, self._agent.observations.arrays(step.observations, self._envs)),
            )
            values, advantages = (tensor.numpy()[step.valid] for tensor in judged)
        self._steps.add(_Seen(step.actions[step.valid], values, advantages))
        self.seconds += self._clock() - start

    def distributions(self) -> dict[str, npt.NDArray[Any]]:
        """What was seen, by TensorBoard's tags: flat arrays of finite numbers, none empty."""
        if not self._steps.items:
            return {}
        columns = zip(*self._steps.items, strict=True)
        flat = {
            f"eval/{name}": np.concatenate([np.ravel(part) for part in column])
            for name, column in zip(_Seen._fields, columns, strict=True)
        }
        finite = {tag: numbers[np.isfinite(numbers)] for tag, numbers in flat.items()}
        return {tag: numbers for tag, numbers in finite.items() if len(numbers)}

    def _compile(self) -> CompiledFunction:
        agent, count = self._agent, len(self._agent.observations.parts)
        specs = agent.observation_specs(self._envs)
        numbers = tf.TensorSpec([self._envs], tf.float32)
        state = tf.TensorSpec([self._envs, agent.state_size], tf.float32)

        def judge(state: Tensor, starts: Tensor, *rest: Tensor) -> Sequence[Tensor]:
            observations, rest = rest[:count], rest[count:]
            rewards, terminated, next_state, *next_observations = rest
            values = agent.values(observations, state, starts)
            later = agent.values(next_observations, next_state, tf.zeros_like(starts))
            learned = agent.learned_rewards(rewards[None])[0]
            gamma = agent.hyperparameters.gamma
            return [values, learned + gamma * later * (1.0 - terminated) - values]

        return CompiledFunction(judge, [state, numbers, *specs, numbers, numbers, state, *specs])
