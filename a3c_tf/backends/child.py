"""What runs in a worker's own process."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection as Pipe
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import psutil

from a3c_tf.agents.loading import load_agent
from a3c_tf.backends.plan import WorkerPlan
from a3c_tf.cores import usable_cores
from a3c_tf.envs.runner import Episode
from a3c_tf.graphs import CompiledFunction, Tensor, configure_tensorflow, unflatten
from a3c_tf.quiet import tf
from a3c_tf.reports import Report
from a3c_tf.signals import dump_stack_on_request, leave_to_the_parent
from a3c_tf.worker import Worker

REPORT_SECONDS = 0.2
ORPHAN_SECONDS = 4.0  # for a child to end after its parent was killed
PLAN = "plan.pickle"


class Mailbox:
    """Shared memory of one child and its parent: three numbers, weights, a gradient.

    Args:
        memory: of `Mailbox.size` bytes.
        weights: how many float32 the weights are.
        gradient: how many float32 the gradient is.

    Attributes:
        stop: [1] int64; 0 go on, 1 stop at once, 2 stop after this rollout.
        beats: [1] int64; how many steps the child has begun.
        attached: [1] int64; 1 when the child has opened the memory.
        weights: [weights] float32.
        gradient: [gradient] float32.
    """

    HEADER = 64  # bytes; keeps the arrays aligned to cache lines

    def __init__(self, memory: SharedMemory, weights: int, gradient: int) -> None:
        self.stop = np.ndarray([1], np.int64, memory.buf)
        self.beats = np.ndarray([1], np.int64, memory.buf, 8)
        self.attached = np.ndarray([1], np.int64, memory.buf, 16)
        self.weights = np.ndarray([weights], np.float32, memory.buf, self.HEADER)
        self.gradient = np.ndarray([gradient], np.float32, memory.buf, self.HEADER + 4 * weights)

    @classmethod
    def size(cls, weights: int, gradient: int) -> int:
        """Bytes of memory needed."""
        return cls.HEADER + 4 * (weights + gradient)

    def release(self) -> None:
        """Lets go of the arrays; once the memory is closed they would point at nothing."""
        del self.stop, self.beats, self.attached, self.weights, self.gradient


class ParentGoneError(Exception):
    """The program that started this process has ended."""


class Answer(NamedTuple):
    """From the parent to a child, beside the weights in its mailbox.

    Attributes:
        version: of these weights.
        step: the global step.
        exploration: the worker's at this step; see `Agent.exploration`.
        busy: seconds that applying and reading took; the rest was waiting.
    """

    version: int
    step: int
    exploration: float
    busy: float


@dataclass
class Message:
    """From a child to its parent, which gives an `Answer` unless it is `done`.

    Attributes:
        has_gradient: whether a gradient waits in the mailbox.
        steps: valid environment steps since the last message.
        episodes: episodes that ended in them.
        report: what the worker did since the last report.
        finished: the episodes that go with it.
        error: a pickled exception that ended the child.
        done: the child ends now.
    """

    has_gradient: bool = False
    steps: int = 0
    episodes: int = 0
    report: Report = field(default_factory=Report)
    finished: list[Episode] = field(default_factory=list)
    error: bytes | None = None
    done: bool = False


class RemoteConnection:
    """Reaches the global weights through a pipe and a mailbox; see `parameters.Connection`.

    Args:
        pipe: to the parent.
        mailbox: shared with the parent.
        weights: the worker's own, in the order of `Agent.weights`.
    """

    def __init__(self, pipe: Pipe, mailbox: Mailbox, weights: list[tf.Variable]) -> None:
        self.version = 0
        self.step = 0
        self.lag = 0
        self.exploration = 0.0
        self.waited = 0.0
        self.env: Any = None  # global step hooks run in the parent
        self.worker: Worker | None = None
        self._pipe = pipe
        self._mailbox = mailbox
        self._last_report = monotonic()

        def assign(vector: Tensor) -> list[Tensor]:
            for weight, values in zip(weights, unflatten(vector, weights), strict=True):
                weight.assign(values)
            return []

        self._assign = CompiledFunction(assign, [tf.TensorSpec([None], tf.float32)])

    def pull(self) -> None:
        """Copies one version of the global weights into the local variables."""
        self._ask(Message())

    def exchange(self, gradient: Tensor, steps: int, episodes: int) -> None:
        """Applies a gradient to the globals, and pulls what comes out, in one go."""
        self._mailbox.gradient[:] = gradient.numpy()
        before = self.version
        self._ask(Message(True, steps, episodes))
        self.lag = self.version - before - 1

    def count(self, steps: int, episodes: int) -> None:
        """Counts steps and episodes that come without a gradient."""
        self._ask(Message(False, steps, episodes))

    def say(self, message: Message) -> None:
        """Sends a message, with the worker's report if it has been a while."""
        now = monotonic()
        if self.worker and (message.done or now - self._last_report > REPORT_SECONDS):
            self._last_report = now
            message.report = self.worker.take_report()
            message.finished = self.worker.take_episodes()
        self._pipe.send(message)

    def _ask(self, message: Message) -> None:
        asked = perf_counter()
        try:
            self.say(message)
            answer: Answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ParentGoneError from error
        self.waited = perf_counter() - asked - answer.busy
        self.version, self.step, self.exploration, _ = answer
        self._assign(tf.constant(self._mailbox.weights))


def child_main(directory: str, memory_name: str, sizes: tuple[int, int], pipe: Pipe) -> None:
    """Builds a worker from its plan and the saved agent, and runs it to its end.

    Args:
        directory: holds the saved agent, the plan, and a file for `dump_stack_on_request`.
        memory_name: of the mailbox.
        sizes: of the mailbox.
        pipe: to the parent.
    """
    leave_to_the_parent()
    threading.Thread(target=_end_with_the_parent, args=(directory,), daemon=True).start()
    try:
        dump_stack_on_request(Path(directory, "stack"))
        memory = _attach(memory_name)
    except FileNotFoundError:  # the run was over before this process had started
        return
    mailbox = Mailbox(memory, *sizes)
    mailbox.attached[0] = 1
    message = Message(done=True)
    connection: Any = None
    try:
        configure_tensorflow()
        plan: WorkerPlan
        _, custom, plan = cloudpickle.loads(Path(directory, PLAN).read_bytes())
        _take_a_core(plan.index, plan.workers)
        agent = load_agent(directory, custom_objects=custom)
        connection = RemoteConnection(pipe, mailbox, agent.weights)
        connection.worker = plan.build(agent, connection)
        stop, beats = mailbox.stop, mailbox.beats

        def interrupted() -> bool:
            beats[0] += 1
            return bool(stop[0] == 1)

        plan.run(connection.worker, lambda: bool(stop[0]), interrupted)
    except ParentGoneError:
        shutil.rmtree(directory, ignore_errors=True)  # as the parent can no longer
        return
    except BaseException as error:  # an environment may well raise SystemExit
        message.error = _pickled(error)
    with suppress(OSError):  # the parent may be gone by now
        (connection.say if connection else pipe.send)(message)
        pipe.close()


def _end_with_the_parent(directory: str) -> None:
    """In a thread: nobody else would end a child that is stuck when its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(directory, ignore_errors=True)
    sleep(ORPHAN_SECONDS)
    os._exit(1)


def _take_a_core(index: int, workers: int) -> None:
    """Keeps this process to one core, if there are as many workers as cores.

    Schedulers like to put a worker beside the parent that has just woken it, on one core while
    another is idle: two workers on two cores are 10 % faster kept apart. With fewer workers than
    cores the choice is the scheduler's, lest two runs sit on the same cores.
    """
    cores, process = usable_cores(), psutil.Process()
    if workers == len(cores) and hasattr(process, "cpu_affinity"):
        process.cpu_affinity([cores[index]])


def _attach(name: str) -> SharedMemory:
    """Opens the parent's memory without owning it.

    Before Python 3.13 the resource tracker would remove it when this process ends.
    """
    register: Callable[..., None] = resource_tracker.register
    resource_tracker.register = lambda *arguments: None
    try:
        return SharedMemory(name)
    finally:
        resource_tracker.register = register


def _pickled(error: BaseException) -> bytes:
    """The exception, with its traceback as text, in a form that the parent can load."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled: bytes = cloudpickle.dumps((error, text))
        cloudpickle.loads(pickled)
    except Exception:  # some exceptions cannot be pickled, or not loaded again
        pickled = cloudpickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))
    return pickled


class ChildTraceback(Exception):  # noqa: N818
    """Shows the traceback of the child below the exception, as its cause."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])
