"""Deterministic runs: repeated, and gone on with after a break, bit for bit."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.backends import supervisor
from a3c_tf.backends.turns import FixedOrder
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.commands.train import train as train_command
from a3c_tf.envs.factory import MakeEnv, RegisteredEnv, make_vector_env
from a3c_tf.envs.runner import EnvRunner, Episode
from a3c_tf.monitor import Progress
from a3c_tf.quiet import keras
from a3c_tf.schedules import Schedule
from a3c_tf.telemetry import SCORE_COLUMNS
from a3c_tf.training import train_agent_async
from a3c_tf.worker import Worker
from tests.envs import BrokenEnvError, FailingEnv, KnownEnv, Observation
from tests.helpers import STATEFUL, make_agent

ROOT = Path(__file__).parents[1]
STEPS, T = 300, 4


class DrawingEnv(gym.Env[Observation, np.int64]):
    """Draws everything from the generator that Gymnasium gives it: also both kinds of ending."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = gym.spaces.Discrete(2)
        self._action = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        self._action = 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        self._action += float(action)
        reward = float(self._draw().normal()) + self._action
        terminated = bool(self._draw().random() < 0.1)
        return self._observe(), reward, terminated, bool(self._draw().random() < 0.05), {}

    def _draw(self) -> Any:
        return self.np_random

    def _observe(self) -> Observation:
        return np.append(self._draw().normal(size=2), self._action).astype(np.float32)


class GloballyDrawingEnv(DrawingEnv):
    """Draws from NumPy's global generator, which nobody can put back for one environment."""

    def _draw(self) -> Any:
        return np.random


def make_drawing(index: int, test: bool) -> gym.Env:
    """For all workers."""
    return DrawingEnv()


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Episode]]:
    """The training episodes of each worker, in their order."""
    seen: dict[int, list[Episode]] = {}
    take = Worker.take_episodes

    def recorded(self: Worker) -> list[Episode]:
        taken = take(self)
        seen.setdefault(self.index, []).extend(taken)
        return taken

    monkeypatch.setattr(Worker, "take_episodes", recorded)
    return seen


class Breaks:
    """Breaks a run off as Ctrl-C does, each time just when a worker counts a certain step.

    That worker's rollout is its last one: whose turn would be next depends on the step.
    """

    def __init__(self, *steps: int) -> None:
        self._steps = list(steps)
        self._reached, self._raised = threading.Event(), threading.Event()
        self.armed = False

    def hook(self, env: Any, agent: Any, step: int) -> None:
        """Called for every step, by the worker that has taken it."""
        if self.armed and self._steps and step >= self._steps[0]:
            self._steps.pop(0)
            self.armed = False
            self._reached.set()
            assert self._raised.wait(10)
            time.sleep(0.02)  # until the run has been told to stop
            self._raised.clear()

    def on_tick(self, step: int, progress: Progress) -> None:
        """Called by the main thread."""
        if self._reached.is_set():
            self._reached.clear()
            self._raised.set()
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of them, since the runs are short."""
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 0.002)


def train(
    outdir: Path,
    make_env: MakeEnv = make_drawing,
    workers: int = 4,
    agent_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A short deterministic run, evaluated in nearly every round."""
    agent = make_agent(
        make_env(0, True),
        hidden_sizes=(8,),
        optimizer=keras.optimizers.Adam(),
        learning_rate=Schedule(1e-2, 0.0, STEPS),
        **(agent_options or {}),
    )
    defaults: dict[str, Any] = {
        "steps": STEPS,
        "eval_interval": 45,
        "eval_n_episodes": 3,
        "eval_envs": 2,
        "t_max": T,
        "checkpoint_seconds": 0.15,
        "deterministic": True,
    }
    return train_agent_async(outdir, workers, make_env, agent=agent, **(defaults | settings))


class Outcome(NamedTuple):
    """What a run has come to."""

    counters: tuple[int, int, int]
    arrays: list[Any]
    rows: list[dict[str, str]]


def rows_of(outdir: Path, statistics: bool = False) -> list[dict[str, str]]:
    """Of scores.txt, without the time, and unless asked for without the means over training."""
    header, *rows = [line.split("\t") for line in (outdir / "scores.txt").read_text().splitlines()]
    wanted = header if statistics else SCORE_COLUMNS
    return [
        {name: value for name, value in zip(header, row, strict=True) if name in wanted}
        | {"elapsed": ""}
        for row in rows
    ]


def outcome(outdir: Path) -> Outcome:
    """Read from the newest checkpoint and from scores.txt."""
    snapshot = newest_checkpoint(outdir / "checkpoints").snapshot
    counters = snapshot.global_step, snapshot.version, snapshot.episodes
    return Outcome(counters, [*snapshot.weights, *snapshot.optimizer], rows_of(outdir))


def assert_same(ours: Path, theirs: Path) -> None:
    """Counters, weights, optimizer and scores, all bits of them."""
    one, other = outcome(ours), outcome(theirs)
    assert one.counters == other.counters
    for array, another in zip(one.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(array, another)
    assert len(one.rows) >= 3
    assert one.rows == other.rows


# Repeated ---------------------------------------------------------------------------------------


def test_twice_in_one_program(tmp_path: Path, episodes: dict[int, list[Episode]]) -> None:
    """Weights, scores with all their columns, and every episode of every worker; by the seed."""
    seen = []
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        train(tmp_path / name, seed=seed)
        seen.append(dict(episodes))
        episodes.clear()
    assert len(seen[0]) == 4
    assert all(seen[0].values())
    assert seen[0] == seen[1]
    assert_same(tmp_path / "one", tmp_path / "two")
    assert rows_of(tmp_path / "one", True) == rows_of(tmp_path / "two", True)
    assert seen[0] != seen[2]
    assert outcome(tmp_path / "one").rows != outcome(tmp_path / "other").rows
    first, other = outcome(tmp_path / "one").arrays, outcome(tmp_path / "other").arrays
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_points_of_curves_go_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a run has taken, its means are over the same steps."""
    for name, elapsed in (("short", 0.0), ("long", 1e5)):
        with monkeypatch.context() as patched:
            patched.setattr(
                "a3c_tf.monitor.PolicyMonitor._read_clock",
                lambda self, elapsed=elapsed: setattr(self.progress, "elapsed", elapsed),
            )
            train(tmp_path / name, steps=1500, eval_interval=400)
    assert rows_of(tmp_path / "short", True) == rows_of(tmp_path / "long", True)
    assert "nan" not in rows_of(tmp_path / "long", True)[-1].values()


FLAGS = "--deterministic --workers 4 --envs-per-worker 2 --t-max 4 --steps 4000 --eval-interval 300"
FLAGS += " --eval-episodes 3 --checkpoint-seconds 0.1 --hidden-sizes 8 --seed 3"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line, on CartPole."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    assert train_command([*FLAGS.split(), "--outdir", str(path)]) == 0
    return path


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script, as a program of its own with its own process group."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_in_two_programs(tmp_path: Path, unbroken: Path) -> None:
    """The script gives what the same flags give in this program."""
    with started(*FLAGS.split(), "--outdir", str(tmp_path / "run")) as process:
        assert process.wait(100) == 0
    assert_same(unbroken, tmp_path / "run")
    assert rows_of(unbroken, True) == rows_of(tmp_path / "run", True)


@pytest.mark.usefixtures("eagerly")
def test_line_by_line(tmp_path: Path) -> None:
    """Nearly the same numbers as from the graphs: they may add up in another order."""
    few = {"steps": 60, "eval_interval": None, "workers": 2}
    train(tmp_path / "eager", **few)
    from a3c_tf.quiet import tf

    tf.config.run_functions_eagerly(False)
    train(tmp_path / "graphs", **few)
    eager, graphs = (
        newest_checkpoint(tmp_path / name / "checkpoints").snapshot for name in ("eager", "graphs")
    )
    assert eager.global_step == graphs.global_step >= 60
    for array, other in zip(eager.weights, graphs.weights, strict=True):
        np.testing.assert_allclose(array, other, atol=1e-5)


@pytest.mark.parametrize("settings", [{"backend": "processes"}, {"eval_seconds": 1.0}])
def test_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """What has no fixed order; nothing is written."""
    with pytest.raises(ValueError, match="deterministic"):
        train(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", ["--backend processes", "--eval-seconds 1"])
def test_flags_refused(flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line that names the flag."""
    outdir = ["--outdir", str(tmp_path / "run")]
    assert train_command(["--deterministic", *flags.split(), *outdir]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert flags.split()[0] in err
    assert not (tmp_path / "run").exists()


# Gone on with after a break -----------------------------------------------------------------------


def broken_off(outdir: Path, breaks: Breaks, count: int, **settings: Any) -> Any:
    """A run that is broken off and resumed so often, and then comes to its end."""
    hooks = {"global_step_hooks": (breaks.hook,), "on_tick": breaks.on_tick}
    for i in range(count):
        breaks.armed = True
        with pytest.raises(KeyboardInterrupt):
            train(outdir, resume=i > 0, **hooks, **settings)
        assert json.loads((outdir / "summary.json").read_text())["stopped_by"] == "interrupt"
    return train(outdir, resume=True, **hooks, **settings)


def assert_breaks_make_no_difference(
    path: Path, episodes: dict[int, list[Episode]], breaks: Sequence[int], **settings: Any
) -> None:
    """Weights, optimizer, scores and episodes are those of an unbroken run."""
    train(path / "unbroken", **settings)
    expected = dict(episodes)
    episodes.clear()
    broken_off(path / "broken", Breaks(*breaks), len(breaks), **settings)
    assert_same(path / "unbroken", path / "broken")
    assert episodes == expected


@pytest.mark.parametrize(("workers", "k", "limit"), [(1, 3, None), (3, 1, 5), (4, 3, None)])
def test_breaks_make_no_difference(
    tmp_path: Path,
    episodes: dict[int, list[Episode]],
    workers: int,
    k: int,
    limit: int | None,
) -> None:
    """After any worker's turn, when an evaluation is due or is not, and twice at once."""
    breaks = (100, 101, 140 + T * k)
    settings = {"workers": workers, "envs_per_worker": k, "max_episode_len": limit}
    assert_breaks_make_no_difference(tmp_path, episodes, breaks, **settings)


def test_breaks_with_state_and_statistics(
    tmp_path: Path, episodes: dict[int, list[Episode]]
) -> None:
    """Of a recurrent net, and of observations and discounted returns."""
    settings = {"workers": 2, "envs_per_worker": 2, "agent_options": STATEFUL}
    assert_breaks_make_no_difference(tmp_path, episodes, (95,), **settings)


def test_runner_comes_back() -> None:
    """Between any two rollouts: where episodes start, and what they have returned so far."""

    def make_runner(seed: int) -> EnvRunner:
        envs = make_vector_env(make_drawing, 0, 3, False, replayable=True)
        return EnvRunner(envs, 2, seed, discount=0.9)

    def rollout(runner: EnvRunner) -> list[Any]:
        results: list[Any] = [*runner.begin_rollout(), runner.starts]
        for _ in range(2):
            results += [*runner.step(np.zeros(3, np.int64)), runner.starts]
        return [*results, runner.finish_rollout(), str(runner.take_episodes())]

    runner, starts = make_runner(0), set()
    rollout(runner)
    for _ in range(30):
        other = make_runner(1)
        assert other.restore(json.loads(json.dumps(runner.state())))
        starts |= set(runner.starts)
        for ours, theirs in zip(rollout(runner), rollout(other), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert starts == {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_many_breaks_make_no_difference(
    tmp_path: Path, episodes: dict[int, list[Episode]], workers: int, k: int
) -> None:
    """At 12 moments."""
    breaks = np.random.default_rng(workers * k).integers(20, 600, 12)
    breaks.sort()
    settings = {"workers": workers, "envs_per_worker": k, "steps": 700, "eval_interval": 30}
    assert_breaks_make_no_difference(tmp_path, episodes, breaks.tolist(), **settings)


@pytest.mark.slow
def test_breaks_in_cartpole(tmp_path: Path, episodes: dict[int, list[Episode]]) -> None:
    """An environment that many people use, with a time limit, and long episodes."""
    make_env = RegisteredEnv("CartPole-v1")
    train(tmp_path / "unbroken", make_env, max_episode_len=30)
    expected = dict(episodes)
    episodes.clear()
    broken_off(tmp_path / "broken", Breaks(90, 215), 2, make_env=make_env, max_episode_len=30)
    assert_same(tmp_path / "unbroken", tmp_path / "broken")
    assert episodes == expected


def test_first_row_after_a_break(tmp_path: Path) -> None:
    """Means over training are the same as ever after it, once their windows are the same."""
    settings = {"steps": 3000, "eval_interval": 600}
    train(tmp_path / "unbroken", **settings)
    broken_off(tmp_path / "broken", Breaks(1300), 1, **settings)
    ours, theirs = (rows_of(tmp_path / name, True) for name in ("unbroken", "broken"))
    assert len(ours) >= 4
    different = [i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    first = next(i for i, row in enumerate(ours) if int(row["steps"]) > 1300)
    assert different in ([], [first])


def test_killed_run(tmp_path: Path, unbroken: Path) -> None:
    """From its newest checkpoint, even one that is older than the kill."""
    run = tmp_path / "run"
    with started(*FLAGS.split(), "--outdir", str(run)) as process:
        deadline = time.monotonic() + 60
        while not any(int(p.name) > 900 for p in run.glob("checkpoints/[0-9]*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    step = newest_checkpoint(run / "checkpoints").snapshot.global_step
    assert 900 < step < 4000, "the kill came too late"
    assert train_command(["--resume", str(run)]) == 0
    assert_same(unbroken, run)


def test_more_steps(tmp_path: Path) -> None:
    """A run that has come to its end goes on as if it had been longer from the start."""
    train(tmp_path / "long", eval_interval=None)
    train(tmp_path / "short", eval_interval=None, steps=STEPS // 2)
    assert outcome_of_steps(tmp_path / "short") < STEPS
    train(tmp_path / "short", eval_interval=None, resume=True)
    ours, theirs = (
        newest_checkpoint(tmp_path / name / "checkpoints").snapshot for name in ("long", "short")
    )
    assert ours.global_step == theirs.global_step
    for array, other in zip(
        (*ours.weights, *ours.optimizer), (*theirs.weights, *theirs.optimizer), strict=True
    ):
        np.testing.assert_array_equal(array, other)


def outcome_of_steps(outdir: Path) -> int:
    """The global step of the newest checkpoint."""
    return newest_checkpoint(outdir / "checkpoints").snapshot.global_step


def test_environment_that_cannot_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Said in a line for each worker, and the run goes on."""
    train(tmp_path, lambda index, test: GloballyDrawingEnv(), steps=200)
    caplog.clear()
    train(tmp_path, lambda index, test: GloballyDrawingEnv(), steps=400, resume=True)
    lines = [record.getMessage() for record in caplog.records if "come back" in record.message]
    assert sorted(line.split(":")[0] for line in lines) == [f"worker {i}" for i in range(4)]
    assert outcome_of_steps(tmp_path) >= 400


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"workers": 3}, True),
        ({"envs_per_worker": 3}, True),
        ({"t_max": 7}, False),
        ({"deterministic": False}, False),
        ({"deterministic": False, "backend": "processes"}, False),
    ],
    ids=["workers", "K", "T", "not deterministic", "processes"],
)
def test_resumed_with_other_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warned: bool
) -> None:
    """It goes on from the weights, and says so where the workers cannot go on."""
    train(tmp_path, steps=200)
    step = outcome_of_steps(tmp_path)
    caplog.clear()
    train(tmp_path, steps=300, resume=True, **settings)
    assert outcome_of_steps(tmp_path) >= 300 > step
    assert ("resumed with other workers" in caplog.text) is warned


# Ends as well as any other run --------------------------------------------------------------------


def test_error_of_one_worker(tmp_path: Path) -> None:
    """It ends all of them, at once."""

    def make_env(index: int, test: bool) -> gym.Env:
        return FailingEnv(30, worker=index) if index == 2 and not test else KnownEnv(index)

    start = time.monotonic()
    with pytest.raises(BrokenEnvError, match="broken in 30"):
        train(tmp_path, make_env, steps=10**9)
    assert time.monotonic() - start < 10
    assert json.loads((tmp_path / "summary.json").read_text())["stopped_by"] == "error"
    assert outcome_of_steps(tmp_path) > 4 * 24


def test_run_goes_on_after_an_error(tmp_path: Path) -> None:
    """An environment that has failed once is brought back, and fails no more."""
    fails = iter([True])

    class FailsOnce(DrawingEnv):
        def step(self, action: Any) -> Any:
            if self._action > 5 and next(fails, False):
                raise BrokenEnvError("once")
            return super().step(action)

    def make_env(index: int, test: bool) -> gym.Env:
        return FailsOnce() if index == 1 and not test else DrawingEnv()

    train(tmp_path / "unbroken")
    with pytest.raises(BrokenEnvError, match="once"):
        train(tmp_path / "broken", make_env)
    train(tmp_path / "broken", make_env, resume=True)
    assert outcome_of_steps(tmp_path / "broken") >= STEPS


def test_stuck_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C ends the run, though it is the turn of a worker that does not return."""
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.5)
    stuck, free = threading.Event(), threading.Event()

    class Sticks(DrawingEnv):
        def step(self, action: Any) -> Any:
            if self._action > 5:
                stuck.set()
                free.wait()
            return super().step(action)

    def make_env(index: int, test: bool) -> gym.Env:
        return Sticks() if index == 1 and not test else DrawingEnv()

    def on_tick(step: int, progress: Progress) -> None:
        if stuck.is_set():
            raise KeyboardInterrupt

    start = time.monotonic()
    with caplog.at_level(logging.ERROR), pytest.raises(KeyboardInterrupt):
        train(tmp_path, make_env, steps=10**9, on_tick=on_tick)
    assert time.monotonic() - start < 15
    assert "worker 1" in caplog.text
    assert outcome_of_steps(tmp_path) > 0
    free.set()


# The order ----------------------------------------------------------------------------------------

Stop = Callable[[], bool]


def never() -> bool:
    """No stop."""
    return False


def in_threads(*works: Callable[[], None]) -> list[threading.Thread]:
    """All of them started, the last one first."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in reversed(threads):
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    """All of them return soon."""
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("first", [0, 2])
def test_order(first: int) -> None:
    """One after the other, whoever asks first; after a round in which all get ready."""
    order, seen = FixedOrder(3, first), []

    def work(member: int) -> None:
        for _ in range(20):
            with order.turn(member, never):
                seen.append(member)

    join(in_threads(*(lambda member=member: work(member) for member in range(3))))  # type: ignore[misc]
    assert seen == [0, 1, 2, *((first + i) % 3 for i in range(57))]


def test_leaving() -> None:
    """The others go on without it, also if it leaves when it is not its turn."""
    order, seen = FixedOrder(3), []

    def work(member: int, turns: int) -> None:
        for _ in range(turns):
            with order.turn(member, never):
                seen.append(member)
        order.leave(member)

    turns = (4, 1, 2)
    join(in_threads(*(lambda m=m: work(m, turns[m]) for m in range(3))))  # type: ignore[misc]
    assert [seen.count(member) for member in range(3)] == list(turns)
    assert seen[:5] == [0, 1, 2, 0, 2]


def test_leaving_in_turn() -> None:
    """Its turn is handed on."""
    order = FixedOrder(2)
    order.leave(0)

    def work() -> None:
        with order.turn(1, never):
            pass

    join(in_threads(work))


def test_last_one_leaves() -> None:
    """Nobody is left, which is no error."""
    order = FixedOrder(2)
    order.leave(1)
    with order.turn(0, never):
        pass
    order.leave(0)


def test_stop_while_waiting() -> None:
    """Whoever waits is let go, though it is not its turn, and whose turn it is stays."""
    order, stop = FixedOrder(2), threading.Event()

    def work() -> None:
        with order.turn(1, stop.is_set):
            pass

    threads = in_threads(work)
    time.sleep(0.05)
    assert threads[0].is_alive()
    stop.set()
    join(threads)
    with order.turn(0, never):
        pass


def test_error_in_a_turn() -> None:
    """It comes out of the turn, which is handed on."""
    order = FixedOrder(2)

    def work() -> None:
        with order.turn(1, never):
            pass

    threads = in_threads(work)
    with pytest.raises(BrokenEnvError), order.turn(0, never):
        raise BrokenEnvError
    join(threads)
