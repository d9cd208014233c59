"""The global weights and the one optimizer, and how workers reach them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from a3c_tf.agent import A3CAgent
from a3c_tf.graphs import CompiledFunction, Tensor, tf_variables
from a3c_tf.quiet import tf


@dataclass
class Snapshot:
    """The state of a `ParameterServer` between two pushes, as arrays.

    Attributes:
        weights: of the nets, in the order of `A3CAgent.variables`.
        optimizer: the optimizer's variables, its iteration count and slots among them.
        global_step: environment steps of all workers together.
        version: how many gradients the weights have received.
        episodes: how many training episodes have ended.
    """

    weights: list[npt.NDArray[Any]]
    optimizer: list[npt.NDArray[Any]]
    global_step: int
    version: int
    episodes: int


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
    """

    def __init__(self, agent: A3CAgent, global_step: int = 0) -> None:
        self.agent = agent
        self.global_step = global_step
        self.version = 0
        self.episodes = 0
        self._lock = threading.Lock()
        agent.optimizer.build(agent.trainable_variables)
        self._optimizer_variables = tf_variables(agent.optimizer.variables)
        self._read = CompiledFunction(
            lambda: [tf.identity(v) for v in (*agent.variables, *self._optimizer_variables)], []
        )
        self._first: Connection | None = None

    def connect(self, local: Sequence[tf.Variable]) -> Connection:
        """A connection for a worker whose local weights are `local`. For the main thread."""
        connection = Connection(self, local, self._first)
        self._first = self._first or connection
        return connection

    def count(self, steps: int = 0, episodes: int = 0) -> None:
        """Counts environment steps and episodes that come without a gradient."""
        with self._lock:
            self.global_step += steps
            self.episodes += episodes

    def snapshot(self) -> Snapshot:
        """A consistent copy of everything; workers go on while its arrays are used."""
        with self._lock:
            tensors = self._read()
            step, version, episodes = self.global_step, self.version, self.episodes
        # A copy, since an array of a tensor may share the variable's memory.
        arrays = [np.array(tensor) for tensor in tensors]
        count = len(self.agent.variables)
        return Snapshot(arrays[:count], arrays[count:], step, version, episodes)

    def restore(self, snapshot: Snapshot) -> None:
        """Puts a snapshot back. For the main thread, before the workers start.

        Raises:
            ValueError: the snapshot is of other nets or another optimizer.
        """
        targets = [*self.agent.variables, *self._optimizer_variables]
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


class Connection:
    """One worker's way to the global weights: directly, under the server's lock.

    Args:
        server: where the weights are.
        local: the worker's own variables, in the order of `A3CAgent.variables`.
        like: a connection of another worker, whose traces are used again.

    Attributes:
        version: the version of the weights in `local`.
        step: the global step at which they were read.
        lag: how many gradients of others had been applied between the last pull and push.
    """

    def __init__(
        self,
        server: ParameterServer,
        local: Sequence[tf.Variable],
        like: Connection | None = None,
    ) -> None:
        self._server = server
        self._local = list(local)
        self.version = 0
        self.step = 0
        self.lag = 0
        agent = server.agent
        gradients = [tf.TensorSpec(v.shape, v.dtype) for v in agent.trainable_variables]
        self._pull: CompiledFunction = CompiledFunction(
            self._read_globals, [], local, like._pull if like else None
        )
        self._exchange: CompiledFunction = CompiledFunction(
            self._apply_and_read_globals,
            [tf.TensorSpec([], tf.float32), *gradients],
            local,
            like._exchange if like else None,
        )

    @property
    def global_step(self) -> int:
        """The global step, without waiting for the lock."""
        return self._server.global_step

    def count(self, steps: int, episodes: int) -> None:
        """Counts steps and episodes that come without a gradient."""
        self._server.count(steps, episodes)

    def pull(self) -> None:
        """Copies one version of the global weights into the local variables."""
        with self._server._lock:
            self._pull()
            self.version = self._server.version
            self.step = self._server.global_step

    def exchange(self, gradients: Sequence[Tensor], steps: int, episodes: int) -> None:
        """Applies gradients to the globals, and pulls what comes out, in one go.

        The learning rate is that of the global step before these steps are counted.

        Args:
            gradients: one for each of the agent's trainable variables.
            steps: environment steps that the gradients were computed from.
            episodes: training episodes that ended in them.
        """
        server = self._server
        schedule = server.agent.hyperparameters.learning_rate
        with server._lock:
            self._exchange(tf.constant(schedule(server.global_step)), *gradients)
            self.lag = server.version - self.version
            server.version += 1
            server.global_step += steps
            server.episodes += episodes
            self.version = server.version
            self.step = server.global_step

    def _read_globals(self) -> Sequence[Tensor]:
        for local, theirs in zip(self._local, self._server.agent.variables, strict=True):
            local.assign(theirs)
        return []

    def _apply_and_read_globals(
        self, learning_rate: Tensor, *gradients: Tensor
    ) -> Sequence[Tensor]:
        agent = self._server.agent
        agent.optimizer.learning_rate = learning_rate
        agent.optimizer.apply(list(gradients), agent.trainable_variables)
        return self._read_globals()
