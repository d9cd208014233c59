"""One actor-learner: the iteration that the whole project is built around.

repeat:
    pull the global weights into the local nets
    collect T steps of K environments with the local policy
    compute returns, advantages, the loss and its gradients
    push the gradients to the global weights
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from a3c_tf.agents.base import Agent
from a3c_tf.agents.learning import Rollout
from a3c_tf.envs.runner import (
    DISCOUNTED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    EnvRunner,
    Episode,
)
from a3c_tf.errors import NotFiniteError, at_the_end
from a3c_tf.graphs import CompiledFunction, Tensor, flatten
from a3c_tf.parameters import Connection
from a3c_tf.quiet import tf
from a3c_tf.reports import GRADIENT_NORM, Report

# turn(): a context that is entered when it is the worker's turn, and left when it is over
Turn = Callable[[], AbstractContextManager[Any]]

CONNECTION_STATE = ("version", "step", "exploration")


class Worker:
    """One actor-learner with its own nets and its own environments.

    The iteration is one compiled graph: the environments are called from inside it, so that
    Python enters TensorFlow once for T x K steps and not once for each. Everything is traced in
    the constructor, in the main thread; the environments are given to `run`, in the worker's.

    Args:
        index: which worker this is.
        agent: its own clone of the agent.
        connection: its way to the global weights.
        t_max: T, steps of a rollout.
        envs: K, environments stepped together.
        seed: of the actions drawn; every worker has another one.
        like: a worker whose trace is used again.
    """

    def __init__(
        self,
        index: int,
        agent: Agent,
        connection: Connection,
        t_max: int,
        envs: int,
        seed: int = 0,
        like: Worker | None = None,
    ) -> None:
        self.index = index
        self.agent = agent
        self.connection = connection
        self.t_max = t_max
        self.envs = envs
        self.statistics: tuple[str, ...] = (*agent.statistics, GRADIENT_NORM)
        self.runner: EnvRunner | None = None
        self._seed = seed
        self._rollouts = 0
        self._report = Report()
        self._lock = threading.Lock()  # the monitor takes the report while the worker adds
        # One trace serves all workers, so the graph finds its environments by the index.
        self._runners: dict[int, EnvRunner] = like._runners if like else {}
        self._index = tf.constant(index, tf.int64)
        self._state = agent.first_state(envs)  # of recurrent nets, for the next observation
        self._iterate: CompiledFunction = CompiledFunction(
            self._build_iteration,
            [
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([2], tf.int64),
                tf.TensorSpec([], tf.float32),
                tf.TensorSpec([envs, agent.state_size], tf.float32),
                tf.TensorSpec([envs], tf.float32),
                *agent.observation_specs(envs),
            ],
            agent.variables,
            like._iterate if like else None,
        )

    def run(
        self,
        runner: EnvRunner,
        should_stop: Callable[[], bool],
        turn: Turn = nullcontext,
    ) -> None:
        """Iterates until `should_stop`, then counts what an unfinished rollout has stepped.

        Args:
            runner: this worker's environments.
            should_stop: asked before every iteration.
            turn: gives what is held during an iteration: who computes when.

        Raises:
            Exception: the first one that an environment raised, as itself.
            NotFiniteError: an observation, reward, loss or gradient is; nothing has been pushed.
        """
        with at_the_end(self._end):
            if self.runner is not runner:
                with turn():
                    self.begin(runner)
            while True:
                asked = perf_counter()
                with turn():
                    if should_stop():
                        return
                    self.iterate(runner, perf_counter() - asked)
                if isinstance(runner.error, NotFiniteError):
                    raise NotFiniteError(self._here(runner.error)) from runner.error
                if runner.error is not None:
                    raise runner.error

    def begin(self, runner: EnvRunner) -> None:
        """Takes the environments, and the first weights unless they have been restored."""
        self.runner = self._runners[self.index] = runner
        self.connection.env = runner.envs
        if not self._rollouts:
            self.connection.pull()

    def _end(self) -> None:
        """Lets go of the environments, to which TensorFlow keeps the way; see `_calls`."""
        self._runners.pop(self.index, None)

    def state(self) -> dict[str, Any]:
        """Where the worker is between two rollouts: counters, weights, and its environments."""
        return {
            "index": self.index,
            "rollouts": self._rollouts,
            "connection": {name: getattr(self.connection, name) for name in CONNECTION_STATE},
            "weights": [weight.numpy() for weight in self.agent.weights],
            "state": self._state.numpy().tolist(),
            "runner": self.runner.state() if self.runner else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes where another worker was, but for the environments. Before `begin`."""
        self._rollouts = state["rollouts"]
        for name in CONNECTION_STATE:
            setattr(self.connection, name, state["connection"][name])
        for weight, array in zip(self.agent.weights, state["weights"], strict=True):
            weight.assign(array)
        self._state = tf.reshape(tf.constant(state["state"], tf.float32), self._state.shape)

    def iterate(self, runner: EnvRunner, waited: float = 0.0) -> None:
        """One rollout, its gradients, and their exchange for the next weights.

        Args:
            runner: this worker's environments.
            waited: seconds that the worker has waited for its turn.
        """
        start = perf_counter()
        gradient, statistics = self.compute_gradient(runner)
        learned = perf_counter()
        if runner.interrupted:
            self.connection.count(runner.steps, runner.episodes)
            return
        self._check(statistics)
        self.connection.exchange(gradient, runner.steps, runner.episodes)
        pushed, waited_to_push = perf_counter(), self.connection.waited
        with self._lock:
            self._report.add(
                Report(
                    statistics.astype(np.float64),
                    iterations=1,
                    steps=runner.steps,
                    lag=self.connection.lag,
                    act=runner.rollout_seconds - runner.env_seconds,
                    env=runner.env_seconds,
                    learn=learned - start - runner.rollout_seconds,
                    push=pushed - learned - waited_to_push,
                    wait=waited + waited_to_push,
                )
            )

    def compute_gradient(self, runner: EnvRunner) -> tuple[Tensor, npt.NDArray[np.float32]]:
        """One rollout with the local weights: what is pushed, flat, and the statistics.

        What is pushed are the clipped gradients and what was seen; see `Normalizations`.
        """
        self._rollouts += 1
        seed = tf.constant([self._seed, self._rollouts], tf.int64)
        exploration = tf.constant(self.connection.exploration, tf.float32)
        observations = [tf.constant(array) for array in runner.begin_rollout()]
        gradient, statistics, self._state = self._iterate(
            self._index,
            seed,
            exploration,
            self._state,
            tf.constant(runner.starts),
            *observations,
        )
        return gradient, statistics.numpy()

    def take_report(self) -> Report:
        """What was done since the last call. May be called by any thread."""
        with self._lock:
            report, self._report = self._report, Report()
        return report

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call. May be called by any thread."""
        return self.runner.take_episodes() if self.runner else []

    def _check(self, statistics: npt.NDArray[np.float32]) -> None:
        """A NaN anywhere in the nets or the gradients reaches their norm."""
        if not np.isfinite(statistics).all():
            values = dict(zip(self.statistics, statistics.tolist(), strict=True))
            raise NotFiniteError(self._here(f"a loss or gradient is not finite: {values}"))

    def _here(self, what: object) -> str:
        return f"worker {self.index}, global step {self.connection.step}: {what}"

    # The graph ------------------------------------------------------------------------------

    def _build_iteration(
        self,
        index: Tensor,
        seed: Tensor,
        exploration: Tensor,
        state: Tensor,
        starts: Tensor,
        *observations: Tensor,
    ) -> Sequence[Tensor]:
        rollout, state = self._collect(index, seed, exploration, state, starts, observations)
        with tf.GradientTape() as tape:
            loss, statistics = self.agent.loss(rollout, exploration)
        gradients = tape.gradient(
            loss, self.agent.trainable_variables, unconnected_gradients="zero"
        )
        norm = tf.linalg.global_norm(gradients)
        limit = self.agent.hyperparameters.max_gradient_norm
        if limit:
            gradients, _ = tf.clip_by_global_norm(gradients, limit, norm)
        moments = self.agent.normalizations.moments(
            rollout.observations, rollout.discounted, rollout.valid
        )
        update = flatten([*gradients, moments])
        return [update, tf.stack([*statistics, norm]), state]

    def _collect(
        self,
        index: Tensor,
        seed: Tensor,
        exploration: Tensor,
        state: Tensor,
        starts: Tensor,
        observations: Sequence[Tensor],
    ) -> tuple[Rollout, Tensor]:
        """T steps, unrolled: the executor of this graph has no loops.

        The state that is returned goes with the last observation, whose value bootstraps: that
        one has not been acted on yet.
        """
        specs = self.agent.observation_specs(self.envs)
        recurrent = self.agent.state_size > 0
        step, last_step = _calls(self._runners, recurrent)
        types = [spec.dtype for spec in specs] + [tf.float32] * recurrent
        noise = tf.unstack(self.agent.actions.noise([self.t_max, self.envs], seed))
        seen, begun, actions = [list(observations)], [starts], []
        first_state, signals = state, None
        for t in range(self.t_max):
            distribution, state = self.agent.distribution(seen[-1], state, begun[-1], exploration)
            actions.append(distribution.sample(noise[t]))
            taken = [index, self.agent.actions.to_environment(actions[-1])]
            if t < self.t_max - 1:
                parts = tf.nest.flatten(tf.numpy_function(step, taken, types))  # one comes bare
            else:
                *parts, signals = tf.numpy_function(last_step, taken, [*types, tf.float32])
            if recurrent:  # 3 % of the CPU time of a step of CartPole, for nobody else
                *parts, starts = parts
            shaped = zip(parts, specs, strict=True)
            seen.append([tf.ensure_shape(part, spec.shape) for part, spec in shaped])
            begun.append(tf.ensure_shape(starts, [self.envs]))
        signals = tf.ensure_shape(signals, (5, self.t_max, self.envs))
        rollout = Rollout(
            [tf.stack(part) for part in zip(*seen, strict=True)],
            tf.stack(actions),
            signals[REWARD],
            signals[TERMINATED],
            signals[TRUNCATED],
            signals[VALID],
            signals[DISCOUNTED],
            first_state,
            tf.stack(begun),
        )
        return rollout, state


def _calls(
    runners: dict[int, EnvRunner], recurrent: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What the graph calls for a step, and for the last step of a rollout.

    TensorFlow keeps both for as long as the program lives. So they hold nothing but a dict, which
    is empty when the workers have ended; methods would hold the worker, its nets and its graphs.
    """

    def step(index: npt.NDArray[Any], actions: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        runner = runners[int(index)]
        observations = runner.step(actions)
        return [*observations, runner.starts] if recurrent else observations

    def last_step(index: npt.NDArray[Any], actions: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return [*step(index, actions), runners[int(index)].finish_rollout()]

    return step, last_step
