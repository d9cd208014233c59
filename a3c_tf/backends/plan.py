"""What one worker is to do; the same for every backend."""

from __future__ import annotations

import cProfile
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a3c_tf.agents.base import Agent
from a3c_tf.envs.factory import MakeEnv, make_vector_env
from a3c_tf.envs.runner import EnvRunner
from a3c_tf.errors import at_the_end
from a3c_tf.normalization import REWARD_SCALE
from a3c_tf.parameters import Connection
from a3c_tf.worker import Turn, Worker


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
        max_episode_len: steps after which an episode is truncated, or None.
        profile: file for a profile of it, or None.
        replayable: whether its environments can be brought back to where they were.
        state: of such a worker, to go on from; or None.
    """

    index: int
    workers: int
    make_env: MakeEnv
    envs: int
    t_max: int
    steps: int
    action_seed: int
    env_seed: int
    max_episode_len: int | None = None
    profile: Path | None = None
    replayable: bool = False
    state: dict[str, Any] | None = None

    def build(self, agent: Agent, connection: Connection, like: Worker | None = None) -> Worker:
        """The worker, traced. In the main thread of its process."""
        return Worker(self.index, agent, connection, self.t_max, self.envs, self.action_seed, like)

    def run(
        self,
        worker: Worker,
        should_stop: Callable[[], bool],
        interrupted: Callable[[], bool],
        turn: Turn = nullcontext,
    ) -> None:
        """Makes the environments, iterates, and closes them however that ends.

        Args:
            worker: from `build`.
            should_stop: asked between iterations.
            interrupted: asked before every step of a rollout.
            turn: gives what is held during an iteration.
        """
        agent = worker.agent
        with ExitStack() as closing:
            with turn():
                envs = make_vector_env(
                    self.make_env,
                    self.index,
                    self.envs,
                    test=False,
                    max_episode_len=self.max_episode_len,
                    replayable=self.replayable,
                    masked=agent.observations.masked,
                )
                runner = EnvRunner(
                    envs,
                    self.t_max,
                    self.env_seed,
                    interrupted,
                    agent.observations,
                    agent.hyperparameters.gamma if REWARD_SCALE in agent.nets else None,
                )
                closing.enter_context(at_the_end(runner.close))
                if self.state is not None:
                    self._restore(worker, runner, self.state)
                worker.begin(runner)
            with _profiled(self.profile):
                worker.run(runner, should_stop, turn)

    def _restore(self, worker: Worker, runner: EnvRunner, state: dict[str, Any]) -> None:
        worker.restore(state)
        if state["runner"] is not None and not runner.restore(state["runner"]):
            logging.getLogger("a3c_tf").warning(
                "worker %d: its environments did not come back to where they were; the run goes "
                "on, but not as it would have gone on without the break",
                self.index,
            )


@contextmanager
def _profiled(path: Path | None) -> Iterator[None]:
    """Writes a cProfile of what the calling thread does in the block, however that ends."""
    if path is None:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        profile.dump_stats(path)
