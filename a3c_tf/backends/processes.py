"""Workers as child processes, each with an interpreter lock and a TensorFlow of its own.

The global weights, the optimizer and the monitor stay in this process. For each child there is
a thread here, which waits for its gradients and applies them; weights and gradients travel
through shared memory, everything else through a pipe.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import cloudpickle
import numpy as np
import psutil

from a3c_tf.agents.base import Agent
from a3c_tf.agents.loading import load_agent
from a3c_tf.backends.child import PLAN, Answer, ChildTraceback, Mailbox, Message, child_main
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.envs.runner import Episode
from a3c_tf.graphs import CompiledFunction, Tensor, flatten
from a3c_tf.parameters import ParameterServer
from a3c_tf.quiet import tf
from a3c_tf.reports import GRADIENT_NORM, Report
from a3c_tf.signals import read_stack, signals_held_back, thread_stack

POLL_SECONDS = 0.1
STOP_SECONDS = 4.0  # for a child to end after the stop; then it is killed
ABANDON_SECONDS = 2.0  # for a child to start after the stop; then it is not waited for
END_POLL_SECONDS = 0.02  # between two looks at whether it has ended
ZOMBIE = psutil.STATUS_ZOMBIE  # it has ended, but nobody has asked how
CHILD_NAME = "a3c_tf worker"
MISSING_GUARD = 79  # exit code of a child that would have trained by itself


class FlatServer:
    """The global weights as one vector, for workers that have no variables in this process."""

    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        weights = server.agent.weights
        if any(weight.dtype != tf.float32 for weight in weights):
            raise ValueError("worker processes need float32 weights; take backend='threads'")

        def apply_and_read(gradient: Tensor, learning_rate: Tensor) -> list[Tensor]:
            server.apply(gradient, learning_rate)
            return [flatten(weights)]

        self._read = CompiledFunction(lambda: [flatten(weights)], [])
        self._exchange = CompiledFunction(
            apply_and_read,
            [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)],
        )

    def answer(self, mailbox: Mailbox, message: Message, worker: int) -> Answer:
        """Does what a child asks for, and puts the weights into its mailbox."""
        server = self.server
        with server.lock:
            start = perf_counter()
            if message.has_gradient:
                gradient = tf.constant(mailbox.gradient)
                weights = self._exchange(gradient, server.learning_rate())[0]
            else:
                weights = self._read()[0]
            server.count(message.steps, message.episodes, int(message.has_gradient))
            version, step = server.version, server.global_step
            exploration = server.agent.exploration(step, worker)
        mailbox.weights[:] = weights.numpy()
        return Answer(version, step, exploration, perf_counter() - start)


class ProcessWorker:
    """A worker in a child process, on whose behalf `run` answers.

    Args:
        plan: what it is to do.
        saved: the files of the saved agent, by name.
        flat: the global weights.
        logger: for a child that has to be killed.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        saved: dict[str, bytes],
        flat: FlatServer,
        logger: logging.Logger,
    ) -> None:
        agent = flat.server.agent
        self.index = plan.index
        self.name = f"worker {plan.index}"
        self.statistics: tuple[str, ...] = (*agent.statistics, GRADIENT_NORM)
        self._plan = plan
        self._flat = flat
        # Classes come along so that their modules are imported, which registers them.
        contents = type(agent), agent.custom_objects(), plan
        self._files = {**saved, PLAN: cloudpickle.dumps(contents)}
        self._sizes = (
            sum(weight.shape.num_elements() for weight in agent.weights),
            sum(int(np.prod(v.shape)) for v in agent.trainable_variables)
            + agent.normalizations.size,
        )
        self._report = Report()
        self._episodes: list[Episode] = []
        self._lock = threading.Lock()
        self._process: Any = None
        self._child: psutil.Process | None = None
        self._stack_file = Path()
        self._thread = 0
        self._logger = logger
        self._patience = STOP_SECONDS
        self.beats = 0
        self.active = False

    def state(self) -> dict[str, Any]:
        """Not from outside the child."""
        raise NotImplementedError("worker processes do not take turns")

    def stack(self) -> str:
        """Where the child is, and the thread that answers it, as text."""
        child = read_stack(self._process.pid, self._stack_file)
        return f"{child}\nand the thread that answers it:\n{thread_stack(self._thread)}"

    def take_report(self) -> Report:
        """What the child did since the last call."""
        with self._lock:
            report, self._report = self._report, Report()
        return report

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return episodes

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Starts the child, answers until it is done, and makes sure that it is gone.

        Raises:
            BaseException: what was raised in the child, as itself.
            RuntimeError: the child ended without a word; the text names it and says how.
        """
        self._thread = threading.get_ident()
        name = f"a3c_tf-{os.getpid()}-{secrets.token_hex(4)}"
        with ExitStack() as closing:  # from the last to the first
            memory = SharedMemory(name, create=True, size=Mailbox.size(*self._sizes))
            self._unlink: Callable[[], None] | None = memory.unlink
            closing.callback(self._forget_name)
            closing.callback(memory.close)
            mailbox = Mailbox(memory, *self._sizes)
            closing.callback(mailbox.release)
            directory = closing.enter_context(tempfile.TemporaryDirectory(prefix=name))
            for file, content in self._files.items():
                Path(directory, file).write_bytes(content)
            self._stack_file = Path(directory, "stack")
            self._stack_file.touch()
            closing.callback(self._end)
            ours, theirs = multiprocessing.Pipe()
            closing.callback(ours.close)  # a child that waits for an answer gets none any more
            closing.callback(mailbox.stop.fill, 1)
            if self._start(theirs, memory.name, directory, should_stop):
                self._serve(ours, mailbox, should_stop)

    def _start(
        self, pipe: Pipe, memory_name: str, directory: str, should_stop: Callable[[], bool]
    ) -> bool:
        """Starts the child, which takes seconds if it is the first; False if stopped before.

        The thread that starts it may then be left alone; the child, if there will be one, finds
        that its files are gone.
        """
        # Only a little travels as arguments: a child that leaves early does not read a lot.
        self._process = _context().Process(
            target=child_main,
            args=(directory, memory_name, self._sizes, pipe),
            name=f"{CHILD_NAME} {self.index}",
            daemon=True,
        )
        errors: list[Exception] = []

        def start() -> None:
            try:
                with pipe, signals_held_back():  # a Ctrl-C would end a fork server that is starting
                    self._process.start()
                with suppress(psutil.NoSuchProcess):  # it has died already
                    self._child = psutil.Process(self._process.pid)
            except Exception as error:  # such as that the fork server has died
                errors.append(error)

        # The pipe is closed here, so that the child's end is the only one, and its death is seen.
        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        while starting.is_alive() and not should_stop():
            starting.join(POLL_SECONDS)
        starting.join(ABANDON_SECONDS)
        if errors:
            (error,) = errors
            raise RuntimeError(f"worker {self.index} could not be started: {error}") from error
        self.active = not starting.is_alive()
        return self.active

    def _forget_name(self) -> None:
        """The shared memory then goes with its last user, even if that is killed."""
        if self._unlink is not None:
            self._unlink()
            self._unlink = None

    def _serve(self, pipe: Pipe, mailbox: Mailbox, should_stop: Callable[[], bool]) -> None:
        stopped_at, heard = None, False
        while True:
            self.beats = int(mailbox.beats[0])
            if mailbox.attached[0]:
                self._forget_name()
            if should_stop() and stopped_at is None:
                mailbox.stop[0] = 1
                stopped_at = monotonic()
                if not heard:  # still getting ready: there is nothing to end
                    self._kill()
                    return
            if stopped_at is not None and monotonic() > stopped_at + STOP_SECONDS:
                self._patience = 0.0
                return  # stuck in an environment; `_end` kills it
            try:
                if not pipe.poll(POLL_SECONDS):
                    continue
                message, heard = pipe.recv(), True
            except (EOFError, OSError):  # the child has died
                self._process.join(STOP_SECONDS)
                raise RuntimeError(self._how_it_ended()) from None
            with self._lock:
                self._report.add(message.report)
                self._episodes += message.finished
            if message.error is not None:
                error, text = cloudpickle.loads(message.error)
                raise error from ChildTraceback(text)
            if message.done:
                return
            answer = self._flat.answer(mailbox, message, self.index)
            if answer.step >= self._plan.steps and stopped_at is None:
                mailbox.stop[0] = 2  # between rollouts, not within one
            with suppress(OSError):  # a child that has died meanwhile is found by the next poll
                pipe.send(answer)

    def _end(self) -> None:
        if not self.active:
            return
        self.active = False
        deadline = monotonic() + self._patience
        while self._runs() and monotonic() < deadline:
            sleep(END_POLL_SECONDS)
        if self._runs():
            self._logger.error("worker %d does not end; its process is killed", self.index)
            self._kill()
        self._process.join(STOP_SECONDS)

    def _runs(self) -> bool:
        """Whether the child has not ended; `self._process` thinks so if the fork server is gone."""
        with suppress(psutil.NoSuchProcess):
            child = self._child
            return child is not None and child.is_running() and child.status() != ZOMBIE
        return False

    def _kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            if self._child is not None:
                self._child.kill()

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        if code == MISSING_GUARD:
            return (
                "worker processes import the script that starts them: put its call of "
                "train_agent_async under `if __name__ == '__main__':`, or take backend='threads'"
            )
        how = f"with exit code {code}"
        if code is None:
            how = "its connection, but runs on"
        elif code < 0:
            with suppress(ValueError):  # a real-time signal has no name
                how = f"by {signal.Signals(-code).name}"
        return f"worker {self.index} (a child process) ended {how}, without an exception"


def process_workers(
    plans: list[WorkerPlan], agent: Agent, server: ParameterServer, logger: logging.Logger
) -> list[ProcessWorker]:
    """Prepares the workers; each child is started by its `run`."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is not None and not Path(main).exists():
        raise ValueError(
            f"worker processes import the main program, but {main} is no file: save it as one, or "
            "take backend='threads'"
        )
    flat = FlatServer(server)
    with tempfile.TemporaryDirectory() as directory:  # the agent travels as it is saved
        agent.save(directory)
        saved = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
        try:
            load_agent(directory, custom_objects=agent.custom_objects())
        except ValueError as error:
            raise ValueError(
                "the agent cannot be taken to worker processes; mend its layers' get_config, or "
                f"take backend='threads': {error}"
            ) from error
    return [ProcessWorker(plan, saved, flat, logger) for plan in plans]


def _context() -> Any:
    """Children from a fork server that has imported TensorFlow but not used it; else spawned.

    A fork of this process would not do: it has used TensorFlow, whose threads a fork loses.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["a3c_tf.backends.preload"])
    return context
