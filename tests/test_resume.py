"""Kills, damaged and hostile files, full disks: what `--resume` makes of them."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import yaml
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from a3c_tf import monitor, reporting
from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import MANIFEST, _checksum, load_checkpoint, newest_checkpoint
from a3c_tf.commands.train import train as train_command
from a3c_tf.errors import CheckpointError
from a3c_tf.quiet import keras
from a3c_tf.reporting import Reporter
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv
from tests.helpers import make_agent

ROOT = Path(__file__).parents[1]
SMALL = "--workers 2 --envs-per-worker 2 --t-max 4 --hidden-sizes 8 --eval-episodes 2"
BUSY = f"{SMALL} --steps 100000000 --eval-interval 50 --checkpoint-seconds 0.05"


def checkpoints(run: Path) -> list[Path]:
    """From the oldest to the newest."""
    return sorted(run.glob("checkpoints/[0-9]*"))


def newest_step(run: Path) -> int:
    """By its name; 0 if there is none."""
    return max((int(path.name) for path in checkpoints(run)), default=0)


# Killed -----------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], seconds: float = 100.0) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shared_memory(pid: int) -> list[Path]:
    """What a run of this project has in /dev/shm."""
    return list(Path("/dev/shm").glob(f"*a3c_tf-{pid}-*"))


def relatives(group: int) -> list[psutil.Process]:
    """All processes of a group, dead ones that nobody has asked for left out."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_after(run: Path, arguments: list[str], seconds: float, before: int) -> int:
    """Runs the script until it has saved, and so many seconds; the newest step then seen.

    All its processes are killed at once, as when a machine's power is cut.
    """
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            wait_for(lambda: newest_step(run) > before or process.poll() is not None)
            time.sleep(seconds)
            assert process.poll() is None, process.stderr and process.stderr.read()
            seen = newest_step(run)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not relatives(process.pid), 10)
    assert shared_memory(process.pid) == []
    return seen


def rows_of(run: Path) -> list[list[str]]:
    """The rows of scores.txt that are whole; a kill may have cut the last one."""
    text = (run / "scores.txt").read_text()
    header, *rows = [line.split("\t") for line in text[: text.rfind("\n") + 1].splitlines()]
    assert header[:4] == ["steps", "episodes", "elapsed", "mean"]
    assert all(len(row) == len(header) for row in rows)
    steps = [int(row[0]) for row in rows]  # a second header would be no number
    assert steps == sorted(set(steps))
    return rows


def curves(run: Path) -> EventAccumulator:
    """What TensorBoard shows; the older reader of that name does not leave out what was lost."""
    return EventAccumulator(str(run), tensor_size_guidance={"scalars": 0}).Reload()


def assert_events_rise(run: Path) -> None:
    """TensorBoard reads every tag with steps that never fall."""
    events = curves(run)
    tags = events.Tags()["tensors"]
    for tag in tags:  # none if it was killed before the first was flushed
        steps = [event.step for event in events.Tensors(tag)]
        assert steps == sorted(steps), tag


def assert_whole(run: Path) -> None:
    """After a kill: checkpoint, scores, best agent and curves."""
    newest = newest_checkpoint(run / "checkpoints", pytest.fail)
    rows = rows_of(run)
    assert not rows or int(rows[-1][0]) <= newest.snapshot.global_step
    if rows:
        assert newest.progress["best_score"] >= max(float(row[3]) for row in rows)
        kept = run / "best" if (run / "best").exists() else run / ".best.old"
        assert load_agent(kept).act(np.zeros(4, np.float32)) in (0, 1)
    assert_events_rise(run)


def kill_again_and_again(run: Path, backend: str, kills: int, seed: int) -> list[int]:
    """Kills a run, resumes it, and looks at what is left each time; the steps resumed from."""
    moments, before = random.Random(seed), 0
    steps = []
    for number in range(kills):
        flags = [*BUSY.split(), "--backend", backend, "--outdir", str(run)]
        arguments = ["--resume", str(run)] if number else flags
        seen = kill_after(run, arguments, moments.uniform(0.0, 1.0), before)
        assert_whole(run)
        before = newest_step(run)
        assert before >= seen  # what has been saved is not lost
        steps.append(before)
    assert steps == sorted(set(steps))
    # And it comes to an ordinary end.
    assert train_command(["--resume", str(run), "--steps", str(before + 100)]) == 0
    assert_whole(run)
    litter = [path.name for path in (*run.glob(".*"), *run.glob("checkpoints/.*"))]
    assert litter == []
    assert points(run, "eval/mean")
    assert points(run, "eval/mean").keys() <= {int(row[0]) for row in rows_of(run)}
    assert json.loads((run / "summary.json").read_text())["steps"] >= before + 100
    return steps


@pytest.mark.parametrize(("backend", "kills"), [("threads", 2), ("processes", 1)])
def test_kills(tmp_path: Path, backend: str, kills: int) -> None:
    """At random moments of a run that saves and evaluates all the time."""
    kill_again_and_again(tmp_path / "run", backend, kills, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_many_kills(tmp_path: Path, backend: str) -> None:
    """15 with each backend."""
    steps = kill_again_and_again(tmp_path / "run", backend, 15, seed=2)
    print(f"{backend}: killed after checkpoints at {steps}")


# Damaged ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line with three checkpoints, to be copied."""
    flags = f"{SMALL} --backend threads --steps 400 --eval-interval 100 --checkpoint-seconds 0.01"
    for _ in range(20):  # how many checkpoints there is time for is not certain
        path = tmp_path_factory.mktemp("finished") / "run"
        assert train_command([*flags.split(), "--outdir", str(path)]) == 0
        if len(checkpoints(path)) == 3:
            return path
    raise AssertionError("no run had the time for three checkpoints")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


def cut_to_nothing(path: Path) -> None:
    """A file without content."""
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """Leaves 60 %."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 6 // 10])


def flip(path: Path) -> None:
    """Another byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


DAMAGE = [  # tests/test_checkpoints.py has every file with every kind
    ("model.keras", cut),
    ("agent.json", flip),
    ("optimizer.npz", cut_to_nothing),
    ("manifest.json", Path.unlink),
]


def resume(run: Path, *flags: str) -> int:
    """`train.py --resume`, in this program."""
    return train_command(["--resume", str(run), "--backend", "threads", *flags])


@pytest.mark.parametrize(("file", "damage"), DAMAGE)
def test_damaged_checkpoint(
    run: Path, caplog: pytest.LogCaptureFixture, file: str, damage: Callable[[Path], None]
) -> None:
    """Named in one line and passed over, whatever has been done to whatever file of it."""
    *_, older, newest = checkpoints(run)
    damage(newest / file)
    # It has nothing left to do then: the step that it goes on from is that at which it ends.
    assert resume(run, "--steps", str(int(older.name))) == 0
    messages = [record.getMessage() for record in caplog.records]
    (line,) = (line for line in messages if str(newest) in line)
    assert "\n" not in line
    assert json.loads((run / "summary.json").read_text())["steps"] == int(older.name)


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run, but for the curves, by their names."""
    files = (path for path in run.rglob("*") if path.is_file() and "tfevents" not in path.name)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_no_valid_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, code 2, and nothing is written over."""
    for path in checkpoints(run):
        cut(path / "model.keras")
    before = contents(run)
    assert resume(run) == 2
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        f"error: no valid checkpoint in {run / 'checkpoints'}"
    ]
    assert "Traceback" not in err
    assert contents(run) == before


# Hostile ----------------------------------------------------------------------------------------


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def sign(checkpoint: Path) -> None:
    """An attacker can write checksums too."""
    names = [path for path in sorted(checkpoint.iterdir()) if path.name != MANIFEST]
    manifest = {path.name: _checksum(path) for path in names}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def hide_a_pickle(checkpoint: Path, canary: Path) -> None:
    """As an array of objects in optimizer.npz."""
    array = io.BytesIO()
    np.save(array, np.array([Canary(canary)], object), allow_pickle=True)
    with zipfile.ZipFile(checkpoint / "optimizer.npz", "w") as file:
        file.writestr("arr_0.npy", array.getvalue())


def hide_a_bare_pickle(checkpoint: Path, canary: Path) -> None:
    """In place of optimizer.npz."""
    (checkpoint / "optimizer.npz").write_bytes(pickle.dumps(Canary(canary)))


def hide_a_lambda(checkpoint: Path, canary: Path) -> None:
    """A layer with Python code in model.keras."""
    code = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    inputs = keras.Input((4,))
    layer = keras.layers.Lambda(eval(f"lambda x: ({code}, x)[1]"))
    model = keras.Model(inputs, [keras.layers.Dense(2)(layer(inputs))] * 2)
    model.save(checkpoint / "model.keras")
    canary.unlink(missing_ok=True)  # it has been called to build the net


@pytest.mark.parametrize("hide", [hide_a_pickle, hide_a_bare_pickle, hide_a_lambda])
def test_hostile_checkpoint(
    run: Path,
    tmp_path: Path,
    hide: Callable[[Path, Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is passed over; what it brings along is not executed."""
    *_, older, newest = checkpoints(run)
    canary = tmp_path / "canary"
    hide(newest, canary)
    sign(newest)
    assert resume(run, "--steps", older.name) == 0
    assert str(newest) in caplog.text
    assert not canary.exists()


def test_hostile_config(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An object in config.yaml is an error in one line, and is not made."""
    canary = tmp_path / "canary"
    config = yaml.safe_load((run / "config.yaml").read_text())
    text = yaml.safe_dump(config) + f"evil: !!python/object/apply:os.mkdir ['{canary}']\n"
    (run / "config.yaml").write_text(text)
    assert resume(run) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not canary.exists()


# Other settings ---------------------------------------------------------------------------------


def test_other_workers(run: Path) -> None:
    """Another number of workers, K, T and backend; the flags are kept for the next time."""
    before = newest_step(run)
    flags = "--workers 3 --envs-per-worker 1 --t-max 7 --backend processes"
    assert train_command(["--resume", str(run), "--steps", "600", *flags.split()]) == 0
    settings = yaml.safe_load((run / "config.yaml").read_text())["settings"]
    given = {"workers": 3, "envs_per_worker": 1, "t_max": 7, "backend": "processes", "steps": 600}
    assert settings.items() >= given.items()
    assert settings["hidden_sizes"] == [8]
    assert newest_step(run) >= 600 > before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--hidden-sizes 9", ("(4, 8)", "(4, 9)")),
        ("--shared-trunk", ("shapes",)),
        ("--optimizer adam", ("shapes",)),
    ],
)
def test_other_net(
    run: Path, capsys: pytest.CaptureFixture[str], flags: str, words: tuple[str, ...]
) -> None:
    """Refused in one line that says what differs; nothing is written over."""
    before = contents(run)
    assert resume(run, *flags.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {run} cannot be resumed like this: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert contents(run) == before


def train(outdir: Path, env: gym.Env | None = None, **settings: Any) -> Any:
    """A short run with one worker, whose learning rate falls to 0 at step 800."""
    env = env or KnownEnv()
    agent = make_agent(
        env, optimizer=keras.optimizers.Adam(), learning_rate=Schedule(1e-3, 0.0, 800)
    )
    defaults: dict[str, Any] = {"eval_interval": 100, "eval_n_episodes": 2, "t_max": 4}
    make_env = settings.pop("make_env", lambda index, test: type(env)(**vars_of(env)))
    return train_agent_async(outdir, 1, make_env, agent=agent, **(defaults | settings))


def vars_of(env: gym.Env) -> dict[str, Any]:
    """What a `KnownEnv` is to be made with again."""
    return {"start": int(env.action_space.start)} if isinstance(env, KnownEnv) else {}


def test_other_spaces(tmp_path: Path) -> None:
    """Refused, also where the shapes are the same: its actions would mean something else."""
    train(tmp_path, steps=100)
    with pytest.raises(CheckpointError, match=r"Discrete\(2\).*Discrete\(2, start=1\)"):
        train(tmp_path, KnownEnv(start=1), steps=200, resume=True)


# The same as an unbroken run ----------------------------------------------------------------------


def points(run: Path, tag: str) -> dict[int, float]:
    """A curve."""
    events = curves(run)
    return {event.step: event.tensor_proto.float_val[0] for event in events.Tensors(tag)}


def test_resumed_run_is_like_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optimizer iterations, its slots, the learning rate at every step, and the tags."""
    monkeypatch.setattr(reporting, "WRITE_SECONDS", 0.01)
    train(tmp_path / "unbroken", steps=800)
    train(tmp_path / "resumed", steps=400)
    train(tmp_path / "resumed", steps=800, resume=True)
    ours, theirs = (
        newest_checkpoint(tmp_path / name / "checkpoints").snapshot
        for name in ("unbroken", "resumed")
    )
    for snapshot in (ours, theirs):
        assert int(snapshot.optimizer[0]) == snapshot.version
        # One worker: only the reset steps, which are in no count, can make a difference.
        assert snapshot.version == pytest.approx(800 * 6 / 5 / 4, abs=2)
    assert [a.shape for a in ours.optimizer] == [a.shape for a in theirs.optimizer]
    tags = []
    for name in ("unbroken", "resumed"):
        rates = points(tmp_path / name, "train/learning_rate")
        assert len(rates) >= 2
        for step, rate in rates.items():
            assert rate == pytest.approx(1e-3 * max(0.0, 1 - step / 800), abs=1e-9)
        events = curves(tmp_path / name)
        tags.append(set(events.Tags()["tensors"]))
    assert tags[0] == tags[1]


def test_curves_after_lost_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed run has shown beyond its last checkpoint is gone from TensorBoard."""
    monkeypatch.setattr(reporting, "WRITE_SECONDS", 0.01)
    train(tmp_path, steps=400)
    lost = checkpoints(tmp_path)[1:]
    for path in lost:
        shutil.rmtree(path)
    before, first = newest_step(tmp_path), int(lost[0].name)
    assert max(points(tmp_path, "train/learning_rate")) > before
    train(tmp_path, steps=before + 1, resume=True)
    assert max(points(tmp_path, "train/learning_rate")) < first + 10
    assert_events_rise(tmp_path)


# A full disk ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """A directory on a disk of 4 MB, and a context in which that is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"there is no mount: {error}")
    if mounted.returncode:
        pytest.skip(f"mount needs root: {mounted.stderr.strip()}")

    @contextmanager
    def full(leave: int = 0) -> Iterator[None]:
        fill(disk, leave)
        try:
            yield
        finally:
            (disk / "filler").unlink()

    full.disk = disk  # type: ignore[attr-defined]
    try:
        yield full
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Until no byte is free, or so many."""
    with (disk / "filler").open("ab", buffering=0) as file, suppress(OSError):
        while shutil.disk_usage(disk).free > leave:
            file.write(b"x" * min(4096, shutil.disk_usage(disk).free - leave))


def hidden(run: Path) -> list[str]:
    """Litter."""
    return [path.name for path in run.rglob(".*")]


def test_disk_full_during_a_checkpoint(
    small_disk: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error line each, no litter, the older one stays; three in a row end the run."""
    run = small_disk.disk / "run"
    train(run, steps=100)
    older = checkpoints(run)
    monkeypatch.setattr(Reporter, "write_training", lambda self: None)
    # Enough for the error's text in TensorBoard, not for a net.
    with small_disk(leave=8192), pytest.raises(OSError, match="No space left"):
        train(run, steps=10**9, eval_interval=None, checkpoint_seconds=0.05, resume=True)
    lines = [r.getMessage() for r in caplog.records if "could not save at step" in r.getMessage()]
    assert len(lines) >= 3
    assert "No space left" in lines[0]
    assert hidden(run) == []
    assert checkpoints(run) == older
    load_checkpoint(older[-1])
    train(run, steps=newest_step(run) + 100, resume=True)
    assert newest_step(run) >= 200


def test_disk_full_for_a_moment(
    small_disk: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on where only one or two checkpoints have failed."""
    run = small_disk.disk / "run"
    train(run, steps=100)
    before = newest_step(run)
    save = monitor.save_checkpoint
    failed = iter([True, True])

    def save_on_a_full_disk(*arguments: Any, **named: Any) -> Path:
        if next(failed, False):
            with small_disk():
                return save(*arguments, **named)
        return save(*arguments, **named)

    monkeypatch.setattr(Reporter, "write_training", lambda self: None)
    monkeypatch.setattr(monitor, "save_checkpoint", save_on_a_full_disk)

    def on_tick(step: int, progress: Any) -> None:
        if newest_step(run) > before:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"checkpoint_seconds": 0.05, "on_tick": on_tick}
    with pytest.raises(KeyboardInterrupt):
        train(run, steps=10**9, eval_interval=None, resume=True, **settings)
    assert caplog.text.count("could not save at step") == 2


def test_disk_full_for_a_row(small_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with that error, and goes on from the older checkpoint once there is space."""
    run = small_disk.disk / "run"
    train(run, steps=100)
    write = Reporter.write_row

    def write_on_a_full_disk(self: Any, row: Any) -> None:
        fill(small_disk.disk)
        write(self, row)

    with monkeypatch.context() as patched:
        patched.setattr(Reporter, "write_row", write_on_a_full_disk)
        patched.setattr(Reporter, "write_training", lambda self: None)
        with pytest.raises(OSError, match="No space left"):
            train(run, steps=10**9, resume=True)
    assert_goes_on(run, small_disk.disk / "filler")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_disk_full_for_an_event(small_disk: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The same: TensorBoard's writer is a thread of its own, whose error is heard of."""
    run = small_disk.disk / "run"
    train(run, steps=100)

    def on_tick(step: int, progress: Any) -> None:
        if step > 500:
            fill(small_disk.disk)

    with pytest.raises(OSError, match=r"TensorBoard's events .*No space left"):
        train(run, steps=10**9, eval_interval=None, resume=True, on_tick=on_tick)
    assert "monitor (KnownEnv): OSError" in caplog.text
    assert_goes_on(run, small_disk.disk / "filler")


def assert_goes_on(run: Path, filler: Path) -> None:
    """Nothing half-written is left, and the run is resumed when there is space."""
    assert not [*run.rglob(".*"), *run.rglob("*.partial")]
    filler.unlink()
    step = newest_step(run)
    load_checkpoint(checkpoints(run)[-1])
    train(run, steps=step + 100, resume=True)
    assert newest_step(run) >= step + 100
    rows_of(run)
