"""The global weights and the one optimizer, and how workers reach them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from a3c_tf.agents.base import Agent
from a3c_tf.graphs import CompiledFunction, Tensor, tf_variables, unflatten
from a3c_tf.hooks import GlobalStepHook
from a3c_tf.quiet import tf


class Connection(Protocol):
    """What a worker needs of the global weights, however far away they are.

    Attributes:
        version: the version of the local weights.
        step: the global step at which they were read.
        lag: how many gradients of others had been applied between the last pull and push.
        exploration: of this worker at `step`; see `Agent.exploration`.
        waited: seconds of the last exchange that were spent waiting for others.
        env: what global step hooks get to see of the worker's environments.
    """

    version: int
    step: int
    lag: int
    exploration: float
    waited: float
    env: Any

    def pull(self) -> None:
        """Copies one version of the global weights into the local variables."""

    def exchange(self, gradient: Tensor, steps: int, episodes: int) -> None:
        """Applies a gradient to the globals, and pulls what comes out, in one go.

        Args:
            gradient: of the agent's trainable variables, one after the other, flat; and behind
                it what was seen (`Normalizations.moments`).
            steps: environment steps that it was computed from.
            episodes: training episodes that ended in them.
        """

    def count(self, steps: int, episodes: int) -> None:
        """Counts steps and episodes that come without a gradient."""


@dataclass
class Snapshot:
    """The state of a `ParameterServer` between two pushes, as arrays.

    Attributes:
        weights: of the nets, in the order of `Agent.weights`.
        optimizer: the optimizer's variables, its iteration count and slots among them.
        global_step: environment steps of all workers together.
        version: how many gradients the weights have received.
        episodes: how many training episodes have ended.
        hyperparameters: of the agent; a hook may have changed them.
    """

    weights: list[npt.NDArray[Any]]
    optimizer: list[npt.NDArray[Any]]
    global_step: int
    version: int
    episodes: int
    hyperparameters: Any = None


class ParameterServer:
    """Owns the global weights, the optimizer, the global step and the version.

    Everything that reads or writes them goes through one lock, so that a worker never sees the
    weights of one version mixed with those of another, and no gradient is lost. (The paper's
    Hogwild updates are lock-free; TensorFlow's assignments would lose some of them.)

    Args:
        agent: its nets are the global ones. Its optimizer is built here, on the global
            variables, before any worker exists: the slots are shared by all workers, as in the
            paper's Shared RMSProp.
        global_step: where counting starts.
        hooks: called for every global step, in rising order.

    Attributes:
        lock: held by whoever reads or writes the variables.
    """

    def __init__(
        self, agent: Agent, global_step: int = 0, hooks: Sequence[GlobalStepHook] = ()
    ) -> None:
        self.agent = agent
        self._hooks = hooks
        self.global_step = global_step
        self.version = 0
        self.episodes = 0
        self.lock = threading.Lock()
        for variable in agent.trainable_variables:
            if variable.dtype != "float32":
                raise ValueError(
                    f"{variable.path} is {variable.dtype}: build the net with dtype='float32'"
                )
        agent.optimizer.build(agent.trainable_variables)
        self._optimizer_variables = tf_variables(agent.optimizer.variables)
        self._read = CompiledFunction(
            lambda: [tf.identity(v) for v in (*agent.weights, *self._optimizer_variables)], []
        )
        self._first: LocalConnection | None = None

    def connect(self, local: Sequence[tf.Variable], worker: int = 0) -> LocalConnection:
        """A connection for nets of this process, with the weights `local`. For the main thread."""
        connection = LocalConnection(self, local, worker, self._first)
        self._first = self._first or connection
        return connection

    def apply(self, gradient: Tensor, learning_rate: Tensor) -> None:
        """The part of a graph that applies a push: a flat gradient, then what was seen."""
        optimizer, variables = self.agent.optimizer, self.agent.trainable_variables
        # There is one replica and nothing to add up. Keras would ask TensorFlow for it, which
        # registers a gradient of that for good, and with it keeps the graph: 1 MB a run.
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
        optimizer.learning_rate = learning_rate
        size = sum(variable.value.shape.num_elements() for variable in variables)
        optimizer.apply(unflatten(gradient[:size], tf_variables(variables)), variables)
        if self.agent.normalizations.size:
            self.agent.normalizations.absorb(gradient[size:])

    def learning_rate(self) -> Tensor:
        """The learning rate at the global step of this moment."""
        return tf.constant(self.agent.hyperparameters.learning_rate(self.global_step), tf.float32)

    def count(self, steps: int, episodes: int, gradients: int = 0, env: Any = None) -> None:
        """Counts what has been done, and calls the hooks for it. The caller holds the lock.

        Args:
            steps: environment steps.
            episodes: training episodes that ended in them.
            gradients: how many have been applied.
            env: passed on to the hooks.
        """
        before = self.global_step
        self.global_step += steps
        self.episodes += episodes
        self.version += gradients
        self.agent.after_steps(before, self.global_step)
        if self._hooks:
            for step in range(before + 1, self.global_step + 1):
                for hook in self._hooks:
                    hook(env, self.agent, step)

    def snapshot(self, patience: float = -1.0) -> Snapshot:
        """A consistent copy of everything; workers go on while its arrays are used.

        Args:
            patience: seconds to wait for whoever holds the lock; less than 0: without an end.

        Raises:
            TimeoutError: the lock has not been free.
        """
        if not self.lock.acquire(timeout=patience):
            raise TimeoutError(
                f"the global weights have been held for {patience:g} s, by a global step hook that "
                "does not return; they cannot be read"
            )
        try:
            tensors = self._read()
            counters = self.global_step, self.version, self.episodes
            hyperparameters = self.agent.hyperparameters
        finally:
            self.lock.release()
        # A copy, since an array of a tensor may share the variable's memory.
        arrays = [np.array(tensor) for tensor in tensors]
        count = len(self.agent.weights)
        return Snapshot(arrays[:count], arrays[count:], *counters, hyperparameters)

    def restore(self, snapshot: Snapshot) -> None:
        """Puts a snapshot back. For the main thread, before the workers start.

        Raises:
            ValueError: the snapshot is of other nets or another optimizer.
        """
        targets = [*self.agent.weights, *self._optimizer_variables]
        arrays = [*snapshot.weights, *snapshot.optimizer]
        ours = [tuple(variable.shape) for variable in targets]
        theirs = [array.shape for array in arrays]
        if ours != theirs:
            raise ValueError(f"the saved variables have shapes {theirs}, the agent's {ours}")
        for variable, array in zip(targets, arrays, strict=True):
            variable.assign(array)
        self.global_step = snapshot.global_step
        self.version = snapshot.version
        self.episodes = snapshot.episodes


class LocalConnection:
    """Reaches the global weights directly, under the server's lock; see `Connection`.

    Args:
        server: where the weights are.
        local: the worker's own weights, in the order of `Agent.weights`.
        worker: its index.
        like: a connection of another worker, whose traces are used again.
    """

    def __init__(
        self,
        server: ParameterServer,
        local: Sequence[tf.Variable],
        worker: int = 0,
        like: LocalConnection | None = None,
    ) -> None:
        self.version = 0
        self.step = 0
        self.lag = 0
        self.exploration = 0.0
        self.waited = 0.0
        self.env: Any = None
        self._server = server
        self._worker = worker

        def read_globals() -> Sequence[Tensor]:
            for ours, theirs in zip(local, server.agent.weights, strict=True):
                ours.assign(theirs)
            return []

        def apply_and_read_globals(gradient: Tensor, learning_rate: Tensor) -> Sequence[Tensor]:
            server.apply(gradient, learning_rate)
            return read_globals()

        self._pull: CompiledFunction = CompiledFunction(
            read_globals, [], local, like._pull if like else None
        )
        self._exchange: CompiledFunction = CompiledFunction(
            apply_and_read_globals,
            [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)],
            local,
            like._exchange if like else None,
        )

    def pull(self) -> None:
        """Copies one version of the global weights into the local variables."""
        with self._server.lock:
            self._pull()
            self._note_version()

    def exchange(self, gradient: Tensor, steps: int, episodes: int) -> None:
        """Applies a gradient to the globals, and pulls what comes out, in one go.

        The learning rate is that of the global step before these steps are counted.
        """
        server, asked = self._server, perf_counter()
        with server.lock:
            self.waited = perf_counter() - asked
            self._exchange(gradient, server.learning_rate())
            self.lag = server.version - self.version
            server.count(steps, episodes, 1, self.env)
            self._note_version()

    def count(self, steps: int, episodes: int) -> None:
        """Counts steps and episodes that come without a gradient."""
        with self._server.lock:
            self._server.count(steps, episodes, 0, self.env)

    def _note_version(self) -> None:
        self.version = self._server.version
        self.step = self._server.global_step
        self.exploration = self._server.agent.exploration(self.step, self._worker)
