"""What one worker is to do; the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from a3c_tf.agent import A3CAgent
from a3c_tf.envs.factory import MakeEnv, make_vector_env
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.errors import at_the_end
from a3c_tf.parameters import Connection
from a3c_tf.worker import Worker


@dataclass(frozen=True)
class WorkerPlan:
    """What one worker is to do.

    Attributes:
        index: which worker it is.
        workers: how many there are.
        make_env: makes its environments.
        envs: K.
        t_max: T.
        steps: the global step at which the run ends.
        action_seed: of the actions drawn.
        env_seed: of the first reset.
    """

    index: int
    workers: int
    make_env: MakeEnv
    envs: int
    t_max: int
    steps: int
    action_seed: int
    env_seed: int

    def build(self, agent: A3CAgent, connection: Connection, like: Worker | None = None) -> Worker:
        """The worker, traced. In the main thread of its process."""
        return Worker(self.index, agent, connection, self.t_max, self.envs, self.action_seed, like)

    def run(
        self,
        worker: Worker,
        should_stop: Callable[[], bool],
        interrupted: Callable[[], bool],
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Makes the environments, iterates, and closes them however that ends.

        Args:
            worker: from `build`.
            should_stop: asked between iterations.
            interrupted: asked between the steps of a rollout.
            turn: held during an iteration.
        """
        envs = make_vector_env(self.make_env, self.index, self.envs, test=False)
        runner = EnvRunner(envs, self.t_max, self.env_seed, interrupted)
        with at_the_end(runner.close):
            worker.run(runner, should_stop, turn)
