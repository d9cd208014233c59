"""Signals, sent to `scripts/train.py` as a terminal or a system would, wherever the run is."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.monitor import Progress
from a3c_tf.signals import RaiseOnce, Terminated, stop_requests
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv
from tests.helpers import make_agent

ROOT = Path(__file__).parents[1]
START_SECONDS = 90.0  # until a run is where it is to be
END_SECONDS = 10.0  # from a signal to the end of the program and all that it has started
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}

# The environment is slow or stuck where the variable PLACE says, and leaves a file there.
PROGRAM = """
import multiprocessing, os, pathlib, threading, time
import gymnasium as gym, numpy as np

PLACE = os.environ["PLACE"]
SLEEP, FSYNC = time.sleep, os.fsync

def here(seconds):
    pathlib.Path("here").touch()
    SLEEP(seconds)

def slow_fsync(descriptor):
    here(0.05)
    FSYNC(descriptor)

if PLACE == "saving":
    os.fsync = slow_fsync

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        thread = threading.current_thread().name
        child = multiprocessing.parent_process() is not None
        name = multiprocessing.current_process().name if child else thread
        if name.endswith("worker 1") and PLACE == "stuck" and self.steps > 20:
            here(1000)
        if thread == "monitor" and PLACE == "evaluating":
            here(0.3)
        if thread == "monitor" and PLACE == "stuck in evaluation":
            here(1000)
        late = not child and thread != "monitor" and "worker" not in thread and self.steps > 1
        if late and PLACE == "stuck in the last evaluation":
            here(1000)
        SLEEP(0.001)
        return np.zeros(3, np.float32), 0.0, False, self.steps % 10 == 0, {}

gym.register("Placed-v0", entry_point=Env)
"""


@pytest.fixture(autouse=True, scope="module")
def interruptible() -> Iterator[None]:
    """A program started in the background of a shell ignores Ctrl-C, and so do its children."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


class Case(NamedTuple):
    """A signal, and when it is sent.

    Attributes:
        place: where the run is.
        backend: of the workers.
        name: of the signal.
        times: how often it is sent, 0.2 s apart.
        group: to all processes of the program, as a terminal does.
    """

    place: str
    backend: str
    name: str
    times: int
    group: bool = False


class Outcome(NamedTuple):
    """How a program has ended.

    Attributes:
        directory: where it ran.
        code: its exit code.
        seconds: from the signal to its end.
        out: its standard output, in lines.
        err: its standard error.
        left: its processes, some time after its end, and its shared memory.
    """

    directory: Path
    code: int
    seconds: float
    out: list[str]
    err: str
    left: list[Any]


def start(directory: Path, place: str, *flags: str, **settings: Any) -> subprocess.Popen[str]:
    """`scripts/train.py` on the environment above, without end."""
    directory.mkdir(exist_ok=True)
    (directory / "placed.py").write_text(PROGRAM)
    last = place == "stuck in the last evaluation"
    values = {
        "--env": "placed:Placed-v0",
        "--outdir": "run",
        "--workers": "2",
        "--envs-per-worker": "1",
        "--steps": "100" if last else str(10**9),
        "--eval-interval": "0" if last else "100" if "evalua" in place else str(10**9),
        "--eval-episodes": "5",
        "--checkpoint-seconds": "0.5",
    }
    arguments = [word for pair in values.items() for word in pair]
    path = os.pathsep.join([str(directory), str(ROOT)])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments, *flags],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path, "PLACE": place},
        text=True,
        start_new_session=True,
        **(pipes | settings),
    )


def wait_for(process: subprocess.Popen[str], there: Any) -> None:
    """Until something is there; the program must not end before it is."""
    deadline = time.monotonic() + START_SECONDS
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_there(directory: Path, place: str) -> bool:
    """Whether the run has come to a place."""
    if place == "building":
        return (directory / "run" / "config.yaml").exists()
    if place == "stepping":
        return bool(list((directory / "run" / "checkpoints").glob("0*[1-9]*")))
    return (directory / "here").exists()


def outcome(directory: Path, case: Case) -> Outcome:
    """Starts a run, sends the signal when it is there, and sees how it ends."""
    process = start(directory, case.place, "--backend", case.backend)
    try:
        wait_for(process, lambda: is_there(directory, case.place))
        family = psutil.Process(process.pid).children(recursive=True)
        number, sent = signal.Signals[case.name], time.monotonic()
        for i in range(case.times):
            time.sleep(0.2 if i else 0.0)
            if process.poll() is None:
                (os.killpg if case.group else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - sent
        print(f"{seconds:.1f} s from the signal to the end")  # for the eye: see pytest -rP
        _, alive = psutil.wait_procs(family, 5)
        memory = Path("/dev/shm").glob(f"a3c_tf-{process.pid}-*")
        left = [*alive, *memory]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Outcome(directory, process.returncode, seconds, out.splitlines(), err, left)


def assert_ended_well(case: Case, result: Outcome) -> None:
    """Soon, with the signal's code, one short message, all saved, and nothing left."""
    assert result.code == CODES[case.name], result
    assert result.seconds < END_SECONDS
    assert result.left == []
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    if case.place.startswith("stuck"):  # who is stuck is named
        lines = [line for line in lines if not re.search("does not (return|end)", line)]
    assert lines == []
    messages = [line for line in result.out if line.startswith("interrupted")]
    assert messages == result.out[-1:]
    run = result.directory / "run"
    if messages[0] == "interrupted":
        assert case.place == "building"
        assert not (run / "checkpoints").exists()
        return
    assert messages == ["interrupted; go on with: --resume run"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stopped_by"] == "interrupt"
    agent = load_agent(run / f"{summary['steps']}_except")
    assert agent.act(np.zeros(3, np.float32)) in (0, 1)
    newest = newest_checkpoint(run / "checkpoints", pytest.fail).snapshot
    assert newest.global_step == summary["steps"]
    assert not list(run.rglob("*.partial"))


PLACES = ("stepping", "evaluating", "building", "saving", "stuck")
CASES = [
    Case("stepping", "processes", "SIGTERM", 2),
    Case("evaluating", "threads", "SIGHUP", 1),
    Case("building", "threads", "SIGTERM", 2),
    Case("building", "processes", "SIGINT", 1, group=True),
    Case("saving", "processes", "SIGINT", 2, group=True),
    Case("stuck", "threads", "SIGINT", 1),
    Case("stuck", "processes", "SIGTERM", 2, group=True),
    Case("stuck in the last evaluation", "threads", "SIGINT", 1),
]


def _name(case: Case) -> str:
    to = " to all" if case.group else ""
    return f"{case.place}-{case.backend}-{case.name}-{case.times}{to}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Case, Future[Outcome]]]:
    """All the cases, a few at a time: most of a case is waiting."""
    root = tmp_path_factory.mktemp("signals")
    with ThreadPoolExecutor(3) as pool:
        yield {case: pool.submit(outcome, root / str(i), case) for i, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_signal(running: dict[Case, Future[Outcome]], case: Case) -> None:
    """The run ends as after its last step, wherever it is."""
    assert_ended_well(case, running[case].result())


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["program", "all"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("place", [*PLACES, "stuck in evaluation", "stuck in the last evaluation"])
def test_signal_everywhere(
    tmp_path: Path, place: str, backend: str, name: str, times: int, group: bool
) -> None:
    """All that `test_signal` takes some of."""
    case = Case(place, backend, name, times, group)
    assert_ended_well(case, outcome(tmp_path / "case", case))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("seconds", [0.2 * i for i in range(30)])
def test_ctrl_c_at_any_time(tmp_path: Path, backend: str, seconds: float) -> None:
    """To all processes, as a terminal sends it: the code is 130, and no traceback is shown."""
    process = start(tmp_path / "run", "nowhere", "--backend", backend)
    time.sleep(1.0 + seconds)  # Python itself has started
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.count("interrupted") == 1


def test_killed_with_a_child_stuck(tmp_path: Path) -> None:
    """When the program itself is killed, its children end too, and their files go."""
    process = start(tmp_path / "run", "stuck", "--backend", "processes")
    wait_for(process, lambda: is_there(tmp_path / "run", "stuck"))
    family = psutil.Process(process.pid).children(recursive=True)
    files = list(Path(tempfile.gettempdir()).glob(f"a3c_tf-{process.pid}-*"))
    assert files
    process.kill()
    _, alive = psutil.wait_procs(family, END_SECONDS)
    for child in alive:
        child.kill()
    process.communicate()
    assert alive == []
    assert not any(file.exists() for file in files)


# Other ends of a program's streams ----------------------------------------------------------------


def test_nobody_reads(tmp_path: Path) -> None:
    """As with `| head -1`, which ends before the run does: it trains on to its end."""
    reading, writing = os.pipe()
    process = start(tmp_path, "nowhere", "--steps", "300", "--backend", "threads", stdout=writing)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert list((tmp_path / "run").glob("*_finish"))


def test_terminal_that_was_closed(tmp_path: Path) -> None:
    """A run that was kept alive (`nohup`, `disown`) trains on although it cannot show anything."""
    ours, theirs = pty.openpty()
    process = start(
        tmp_path,
        "nowhere",
        *("--steps", "3000", "--backend", "threads"),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    wait_for(process, lambda: is_there(tmp_path, "stepping") or os.read(ours, 1000) == b"")
    os.close(ours)
    assert process.wait(timeout=100) == 0
    assert list((tmp_path / "run").glob("*_finish"))


def test_ignored_signal() -> None:
    """A program that was started to ignore Ctrl-C goes on ignoring it."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        RaiseOnce().install()
        with stop_requests() as request:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
            assert not request
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
def test_background_job(tmp_path: Path) -> None:
    """The same of a whole program."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(tmp_path, "stepping", "--steps", "1500", "--backend", "threads")
    finally:
        signal.signal(signal.SIGINT, previous)
    wait_for(process, lambda: is_there(tmp_path, "stepping"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert list((tmp_path / "run").glob("*_finish"))


# A caller in Python -------------------------------------------------------------------------------


def train(outdir: Path, on_step: Any) -> None:
    """A run without end; `on_step(step)` is called now and then."""

    def on_tick(step: int, progress: Progress) -> None:
        assert step < 10**6
        on_step(step)

    train_agent_async(
        outdir,
        1,
        lambda index, test: KnownEnv(),
        agent=make_agent(KnownEnv()),
        steps=10**9,
        eval_interval=None,
        on_tick=on_tick,
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [("SIGINT", KeyboardInterrupt), ("SIGTERM", Terminated), ("SIGHUP", Terminated)],
)
def test_caller_gets_an_exception(tmp_path: Path, name: str, error: type[BaseException]) -> None:
    """One that says which, and finds its signals as they were."""
    numbers = [signal.Signals[name] for name in CODES]
    before = [signal.getsignal(number) for number in numbers]
    during: list[Any] = []

    def on_step(step: int) -> None:
        if step > 50:
            during[:] = [signal.getsignal(number) for number in numbers]
            os.kill(os.getpid(), signal.Signals[name])

    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path, on_step)
    assert type(caught.value) is error
    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [signal.getsignal(number) for number in numbers] == before
    assert list(tmp_path.glob("*_except"))


def test_handlers_of_the_caller(tmp_path: Path) -> None:
    """Signals that the program handles itself are its own during the run, too."""
    got: list[int] = []

    def mine(number: int, frame: Any) -> None:
        got.append(number)

    def on_step(step: int) -> None:
        if got:
            raise LookupError
        if step > 50:
            os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(LookupError):
            train(tmp_path, on_step)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert got == [signal.SIGTERM]


def test_run_in_another_thread(tmp_path: Path) -> None:
    """Only the main thread may handle signals: there, none is touched."""
    numbers = [signal.Signals[name] for name in CODES]
    before = [signal.getsignal(number) for number in numbers]
    during: list[Any] = []

    def ask() -> None:
        with stop_requests() as request:
            during.extend(signal.getsignal(number) for number in numbers)
            assert not request

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert during == before
