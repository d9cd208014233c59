"""Faults while a run goes on: it ends as itself, soon, saved, and nothing is left behind."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from a3c_tf import checkpoints, monitor, reporting, run_directory
from a3c_tf.agents.base import Agent
from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.commands.train import train as train_command
from a3c_tf.config import TrainConfig
from a3c_tf.errors import NotFiniteError
from a3c_tf.monitor import Progress
from a3c_tf.parameters import ParameterServer
from a3c_tf.run_directory import write_config
from a3c_tf.telemetry import ScoreLog
from a3c_tf.training import train_agent_async
from tests.envs import BadNumbersEnv, BrokenEnvError, FailingEnv, KnownEnv
from tests.helpers import make_agent
from tests.test_processes import SHARED_MEMORY, worker_processes

ROOT = Path(__file__).parents[1]
BACKENDS = ("threads", "processes")
K = 2
SECONDS = 10.0  # from a fault to the end of the run


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no thread and no shared memory outlives a run."""
    threads = set(threading.enumerate())
    yield
    assert worker_processes() == []
    assert set(threading.enumerate()) <= threads
    assert list(SHARED_MEMORY.glob(f"a3c_tf-{os.getpid()}-*")) == []


class NotedEnv(FailingEnv):
    """Notes in a file of its own how often it is closed, in whatever process; may fail in that."""

    def __init__(self, notes: Path, where: Any = None, **settings: Any) -> None:
        super().__init__(where, **settings)
        self._note = notes / uuid.uuid4().hex
        self._note.touch()

    def close(self) -> None:
        """Notes it."""
        with self._note.open("a") as file:
            file.write("closed\n")
        self._fail_if(self._where == "close")


class Make:
    """`make_env`: one environment fails, of worker 1 or of the evaluation.

    Args:
        notes: a directory for the notes of `NotedEnv`.
        where: where it fails; see `FailingEnv`.
        test: whether it is one of the evaluation.
    """

    def __init__(self, notes: Path, where: Any = None, test: bool = False) -> None:
        notes.mkdir(exist_ok=True)
        self.notes = notes
        self._where = where
        self._test = test
        self._calls = 0

    def __call__(self, index: int, test: bool) -> gym.Env:
        """The second one, so that there is one to be closed if the constructor fails."""
        if test != self._test or (not test and index != 1):
            return NotedEnv(self.notes)
        self._calls += 1
        return NotedEnv(self.notes, self._where if self._calls == 2 else None)

    def closings(self) -> set[int]:
        """How often environments were closed, of those that were made."""
        return {path.read_text().count("closed") for path in self.notes.iterdir()}


def train(
    outdir: Path,
    make_env: Callable[[int, bool], gym.Env],
    on_tick: Callable[[int, Progress], None] = lambda step, progress: None,
    **settings: Any,
) -> Agent:
    """A short run with linear nets, which evaluates often."""
    start = time.monotonic()

    def tick(step: int, progress: Progress) -> None:
        assert time.monotonic() - start < 60, "the run does not end"
        on_tick(step, progress)

    defaults: dict[str, Any] = {
        "processes": 2,
        "agent": make_agent(KnownEnv()),
        "steps": 10**9,
        "eval_interval": 50,
        "eval_n_episodes": 2,
        "eval_envs": 2,
        "envs_per_worker": K,
        "t_max": 3,
        "logger": logging.getLogger("mine"),
    }
    return train_agent_async(outdir, make_env=make_env, on_tick=tick, **(defaults | settings))


def summary(outdir: Path) -> dict[str, Any]:
    """What summary.json holds."""
    return json.loads((outdir / "summary.json").read_text())


def saved_after_an_error(outdir: Path) -> Agent:
    """The agent that is there, which acts; a checkpoint of the same moment is there too."""
    result = summary(outdir)
    assert result["stopped_by"] == "error"
    assert not list(outdir.glob("*_finish"))
    agent = load_agent(outdir / f"{result['steps']}_except")
    assert all(np.isfinite(weights).all() for weights in agent.model.get_weights())
    assert agent.act(KnownEnv().reset()[0]) in (0, 1)
    assert newest_checkpoint(outdir / "checkpoints").snapshot.global_step == result["steps"]
    return agent


def litter(outdir: Path) -> list[Path]:
    """What was begun and is not finished."""
    return [*outdir.rglob("*.partial"), *outdir.rglob(".*.old")]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the run's logger got as errors."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "mine" and record.levelno == logging.ERROR
    ]


# Errors -------------------------------------------------------------------------------------------


class Fault:
    """Fails where it is told to, once the run has gone on for a moment.

    Attributes:
        at: when it first failed.
    """

    def __init__(self) -> None:
        self.at: float | None = None

    def fail(self, *arguments: Any, **named: Any) -> None:
        """Stands for whatever is called."""
        self.at = self.at or time.monotonic()
        raise BrokenEnvError("broken there")


def _in_a_hook(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def hook(env: Any, agent: Agent, step: int) -> None:
        if step >= 50:
            fault.fail()

    return {"global_step_hooks": [hook]}


def _in_an_evaluation_hook(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"evaluation_hooks": [fault.fail]}


def _in_the_last_evaluation_hook(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"evaluation_hooks": [fault.fail], "eval_interval": 0, "steps": 200}


def _in_the_monitor(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(monitor.PolicyMonitor, "_evaluation_is_due", fault.fail)
    return {}


def _in_the_event_writer(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def add(writer: EventFileWriter, event: Any) -> None:
        if event.HasField("summary"):  # not the file's first line
            fault.fail()

    patch.setattr(EventFileWriter, "add_event", add)
    return {}


def _in_a_score_line(fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(ScoreLog, "append", fault.fail)
    return {}


@pytest.mark.parametrize(
    ("who", "prepare", "backend"),
    [
        ("worker [01]", _in_a_hook, "threads"),
        pytest.param("worker [01]", _in_a_hook, "processes", marks=pytest.mark.slow),
        ("monitor", _in_an_evaluation_hook, "threads"),
        pytest.param("monitor", _in_an_evaluation_hook, "processes", marks=pytest.mark.slow),
        ("the end", _in_the_last_evaluation_hook, "threads"),
        ("monitor", _in_the_monitor, "threads"),
        ("monitor", _in_the_event_writer, "threads"),
        ("monitor", _in_a_score_line, "threads"),
    ],
)
def test_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    who: str,
    prepare: Callable[[Fault, pytest.MonkeyPatch], dict[str, Any]],
    backend: str,
) -> None:
    """It ends the run as itself; one line says where it was, and all is saved and closed."""
    fault, make_env = Fault(), Make(tmp_path / "notes")
    settings = prepare(fault, monkeypatch)
    with pytest.raises(BrokenEnvError, match=r"^broken there(?m:$)") as caught:
        train(tmp_path / "run", make_env, backend=backend, **settings)
    assert fault.at is not None
    assert time.monotonic() - fault.at < SECONDS
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fail"
    assert_named(who, caught.value, caplog)
    saved_after_an_error(tmp_path / "run")
    assert litter(tmp_path / "run") == []
    assert make_env.closings() == {1}


def assert_named(who: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, and a note below the traceback: who, the step, the environment."""
    (line,) = lines_of(caplog)
    assert re.fullmatch(rf"the run ends at step \d+: {who} \(NotedEnv\): .*broken .*", line)
    if sys.version_info >= (3, 11):
        (note,) = error.__notes__
        assert re.fullmatch(rf"in {who} \(NotedEnv\), at global step \d+", note)


@pytest.mark.parametrize("where", [7, pytest.param("constructor", marks=pytest.mark.slow)])
def test_error_in_a_child(tmp_path: Path, caplog: pytest.LogCaptureFixture, where: Any) -> None:
    """As in a thread; the place in the child is shown as the cause."""
    make_env = Make(tmp_path / "notes", where)
    with pytest.raises(BrokenEnvError, match=f"^broken in {where}(?m:$)") as caught:
        train(tmp_path / "run", make_env, backend="processes")
    assert "in _fail_if" in str(caught.value.__cause__)
    assert_named("worker 1", caught.value, caplog)
    saved_after_an_error(tmp_path / "run")
    assert make_env.closings() == {1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_error_in_close(tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    """At the end of its worker; the other environments are closed none the less."""
    make_env = Make(tmp_path / "notes", "close")
    with pytest.raises(BrokenEnvError, match=r"^broken in close(?m:$)") as caught:
        train(tmp_path / "run", make_env, backend=backend, steps=300)
    assert_named("worker 1", caught.value, caplog)
    saved_after_an_error(tmp_path / "run")
    assert make_env.closings() == {1}


def test_error_in_close_after_the_monitor_has_ended_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not lost because the run was over already."""
    make_env = Make(tmp_path / "notes", "close")
    with pytest.raises(BrokenEnvError, match=r"^broken in close(?m:$)") as caught:
        train(tmp_path / "run", make_env, evaluation_hooks=[lambda *arguments: "stop"])
    assert_named("worker 1", caught.value, caplog)
    assert make_env.closings() == {1}


def test_error_in_close_of_the_evaluation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run has been finished and saved as such; the error is shown all the same."""
    make_env = Make(tmp_path / "notes", "close", test=True)
    with pytest.raises(BrokenEnvError, match=r"^broken in close(?m:$)") as caught:
        train(tmp_path / "run", make_env, steps=300)
    assert_named("the end", caught.value, caplog)
    load_agent(tmp_path / "run" / f"{summary(tmp_path / 'run')['steps']}_finish")
    assert make_env.closings() == {1}


PROGRAM = """
import threading, multiprocessing, sys
import gymnasium as gym, numpy as np

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        name = threading.current_thread().name + multiprocessing.current_process().name
        if self.steps > 30 and "worker" in name:
            raise ERROR
        return np.zeros(3, np.float32), 0.0, False, self.steps % 10 == 0, {}

gym.register("Faulty-v0", entry_point=Env)
"""


def script(directory: Path, *arguments: str, error: str) -> subprocess.CompletedProcess[str]:
    """`scripts/train.py` on an environment of a module in the directory."""
    (directory / "faulty.py").write_text(PROGRAM.replace("ERROR", error))
    path = os.pathsep.join([str(directory), str(ROOT)])
    flags = ["--env", "faulty:Faulty-v0", "--outdir", "run", "--eval-interval", "100000000"]
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *flags, *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("backend", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_exit_code(tmp_path: Path, backend: str) -> None:
    """1, with one line that says where, and the traceback."""
    done = script(tmp_path, "--backend", backend, error="LookupError('broken')")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    (line,) = (line for line in lines if line.startswith("ERROR: "))
    assert re.fullmatch(r"ERROR: the run ends at step \d+: worker \d \(Faulty-v0\): .*", line)
    assert any(line.startswith("LookupError: broken") for line in lines)
    assert "faulty.py" in done.stderr
    assert list((tmp_path / "run").glob("*_except"))


def test_exit_code_of_an_environment_that_exits(tmp_path: Path) -> None:
    """It is an error, whatever number the environment gave."""
    done = script(tmp_path, "--backend", "threads", error="SystemExit(0)")
    assert done.returncode == 1
    assert "SystemExit" in done.stderr
    assert list((tmp_path / "run").glob("*_except"))


# Saves that fail ----------------------------------------------------------------------------------


class Saves:
    """Some checkpoints of a run cannot be written to their end.

    Args:
        patch: undone after the test.
        failing: which saves fail, the first is number 0.
    """

    def __init__(self, patch: pytest.MonkeyPatch, failing: Sequence[int]) -> None:
        self.made = 0
        self.failed = 0
        flush = checkpoints._flush

        def save(root: Path, *arguments: Any, **named: Any) -> Path:
            self.made += 1
            patch.setattr(checkpoints, "_flush", self._fail if self.made - 1 in failing else flush)
            try:
                return checkpoints.save_checkpoint(root, *arguments, **named)
            finally:
                patch.setattr(checkpoints, "_flush", flush)

        patch.setattr(monitor, "save_checkpoint", save)

    def _fail(self, path: Path) -> None:
        self.failed += 1
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("failing", [[1], [1, 2], [1, 2, 4, 5]])
def test_saves_that_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: list[int],
) -> None:
    """Fewer than three in a row: said, and the run goes on."""
    saves, run = Saves(monkeypatch, failing), tmp_path / "run"

    def on_tick(step: int, progress: Progress) -> None:
        if saves.made > 7:
            raise KeyboardInterrupt

    settings = {"checkpoint_seconds": 0.05, "eval_interval": None, "on_tick": on_tick}
    with pytest.raises(KeyboardInterrupt):
        train(run, Make(tmp_path / "notes"), **settings)
    assert saves.failed == len(failing)
    lines = lines_of(caplog)
    assert len(lines) == len(failing)
    for line in lines:
        assert re.fullmatch(r"could not save at step \d+: .*Input/output error", line)
    events = EventAccumulator(str(run), size_guidance={"tensors": 0}).Reload()
    (*texts,) = events.Tensors("error")
    assert [text.tensor_proto.string_val[0].decode() for text in texts] == lines
    assert litter(run) == []
    newest = newest_checkpoint(run / "checkpoints", pytest.fail)
    assert newest.snapshot.global_step == summary(run)["steps"]


def test_three_saves_in_a_row_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They end the run; what was saved before is still there, and valid."""
    saves, run = Saves(monkeypatch, range(2, 10**6)), tmp_path / "run"
    make_env = Make(tmp_path / "notes")
    with pytest.raises(OSError, match="Input/output error"):
        train(run, make_env, checkpoint_seconds=0.05, eval_interval=None)
    assert saves.failed == 4  # the last is that of the end
    lines = lines_of(caplog)
    assert [line.split(" ")[0] for line in lines] == ["could"] * 3 + ["the", "could"]
    assert re.match(r"the run ends at step \d+: monitor \(NotedEnv\): OSError", lines[3])
    assert litter(run) == []
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert newest_checkpoint(run / "checkpoints", pytest.fail).snapshot.global_step > 0
    load_agent(run / f"{summary(run)['steps']}_except")
    assert summary(run)["stopped_by"] == "error"
    assert make_env.closings() == {1}


def test_last_save_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no later one that may succeed: the run does not end as if all were well."""
    Saves(monkeypatch, [0])
    with pytest.raises(OSError, match="Input/output error"):
        train(tmp_path / "run", Make(tmp_path / "notes"), steps=200, eval_interval=None)
    load_agent(tmp_path / "run" / f"{summary(tmp_path / 'run')['steps']}_finish")


# Numbers that are not finite ----------------------------------------------------------------------


class MakeBadNumbers:
    """`make_env`: the last environment of worker 1, or of the evaluation, is a `BadNumbersEnv`."""

    def __init__(self, *arguments: Any, test: bool = False) -> None:
        self._arguments = arguments
        self._test = test
        self._calls = 0

    def __call__(self, index: int, test: bool) -> gym.Env:
        """One environment."""
        if test != self._test or (not test and index != 1):
            return KnownEnv()
        self._calls += 1
        return BadNumbersEnv(*self._arguments) if self._calls == K else KnownEnv()


@pytest.mark.parametrize(
    ("array", "value", "at", "backend"),
    [
        *(
            (array, value, at, "threads")
            for array in ("observation", "reward")
            for value in (np.nan, np.inf)
            for at in (1, 20)
        ),
        ("observation", np.nan, 20, "processes"),
    ],
)
def test_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: str, value: float, at: int, backend: str
) -> None:
    """Who, when, what and which environment; no gradient of it reaches the global weights."""
    before: list[Any] = []

    def count(server: Any, steps: int, episodes: int, gradients: int = 0, env: Any = None) -> None:
        counted(server, steps, episodes, gradients, env)
        if gradients:
            before[:] = [weights.copy() for weights in server.agent.model.get_weights()]

    counted = ParameterServer.count
    monkeypatch.setattr(ParameterServer, "count", count)
    message = rf"^worker 1, global step \d+: the {array} of environment {K - 1} is {value}(?m:$)"
    with pytest.raises(NotFiniteError, match=message):
        train(tmp_path, MakeBadNumbers(array, value, at), backend=backend, eval_interval=None)
    agent = saved_after_an_error(tmp_path)
    for array_before, array_after in zip(before, agent.model.get_weights(), strict=bool(before)):
        np.testing.assert_array_equal(array_before, array_after)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.slow
@pytest.mark.parametrize("array", ["observation", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [1, 20])
def test_not_finite_everywhere(
    tmp_path: Path, array: str, value: float, at: int, backend: str
) -> None:
    """All that `test_not_finite` takes some of."""
    message = rf"^worker 1, global step \d+: the {array} of environment {K - 1} is {value}(?m:$)"
    with pytest.raises(NotFiniteError, match=message):
        train(tmp_path, MakeBadNumbers(array, value, at), backend=backend, eval_interval=None)
    saved_after_an_error(tmp_path)


@pytest.mark.parametrize("array", ["observation", "reward"])
@pytest.mark.parametrize("eval_interval", [50, 0])
def test_not_finite_in_an_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, array: str, eval_interval: int
) -> None:
    """During the run or after it: the same, and no score of it is written."""
    message = rf"^the {array} of evaluation environment {K - 1} is nan(?m:$)"
    settings = {"eval_interval": eval_interval, "steps": 10**9 if eval_interval else 200}
    with pytest.raises(NotFiniteError, match=message):
        train(tmp_path, MakeBadNumbers(array, np.nan, 3, test=True), **settings)
    (line,) = lines_of(caplog)
    assert ("monitor" if eval_interval else "the end") in line
    saved_after_an_error(tmp_path)
    assert not (tmp_path / "best").exists()
    assert len((tmp_path / "scores.txt").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("backend", "test"), [("threads", False), ("processes", False), ("threads", True)]
)
def test_observation_of_another_shape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str, test: bool
) -> None:
    """In the middle of a run or of an evaluation: who, and both shapes."""
    message = r"^BadNumbersEnv returned an observation .* shape \(3,\), .* says \(11,\)(?m:$)"
    with pytest.raises(ValueError, match=message):
        train(tmp_path, MakeBadNumbers("shape", 0.0, 7, test=test), backend=backend)
    (line,) = lines_of(caplog)
    assert ("monitor" if test else "worker 1") in line
    saved_after_an_error(tmp_path)


# Where a run is written, and the clock ------------------------------------------------------------


def _refuse(*arguments: Any, **named: Any) -> None:
    raise PermissionError(13, "Permission denied")


def assert_one_line(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 2 and one line."""
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith("error: ")
    assert err.endswith("cannot be written: Permission denied\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["mkdir", "touch"])
def test_read_only_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A new run: the directory cannot be made, or nothing in it."""
    monkeypatch.setattr(Path, name, _refuse)
    code = train_command(["--outdir", str(tmp_path / "run"), "--backend", "threads"])
    assert_one_line(code, capsys)


def test_read_only_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run to go on with that cannot be written any more."""
    write_config(tmp_path, TrainConfig(backend="threads"))
    monkeypatch.setattr(run_directory, "TemporaryFile", _refuse)
    assert_one_line(train_command(["--resume", str(tmp_path)]), capsys)


def test_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on; the steps of TensorBoard's curves still rise."""
    clock = iter(range(2 * 10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    monkeypatch.setattr(reporting, "WRITE_SECONDS", 0.05)
    run = tmp_path / "run"
    train(run, Make(tmp_path / "notes"), steps=2000, checkpoint_seconds=0.05)
    monkeypatch.undo()
    assert summary(run)["stopped_by"] == "steps"
    assert summary(run)["seconds"] > 0
    events = EventAccumulator(str(run), size_guidance={"tensors": 0}).Reload()
    for tag in ("loss/total", "eval/mean", "time/steps_per_second"):
        steps = [event.step for event in events.Tensors(tag)]
        assert len(steps) >= 2
        assert steps == sorted(steps)
    rows = (run / "scores.txt").read_text().splitlines()[1:]
    elapsed = [float(row.split("\t")[2]) for row in rows]
    assert elapsed == sorted(elapsed)
