"""Whole runs of `train_agent_async`: counting, evaluation, ending, going on."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a3c_tf import monitor, reporting
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import newest_checkpoint
from a3c_tf.errors import CheckpointError
from a3c_tf.monitor import Progress
from a3c_tf.quiet import keras
from a3c_tf.reports import TIMES
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import ABCEnv, BrokenEnvError, FailingEnv, KnownEnv, OldStyleEnv
from tests.helpers import make_agent

WORKERS, K, T = 2, 3, 4
PAUSE = 0.0005  # of a step; 1500 steps of two workers then last for half a second
LENGTHS = (5, 1, 2)  # of episodes; none divides another's rollouts evenly

Where = str | int | None


class _Env(FailingEnv):
    """A `KnownEnv` that counts how often it is closed, and fails only if it is told to."""

    def __init__(self, where: Where = None, **settings: Any) -> None:
        self.closings = 0
        super().__init__(where, **settings)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closings += 1
        super().close()


Make = Callable[[int, bool, int], gym.Env]


class Recorder:
    """`make_env` that keeps what it has made.

    Args:
        make: called with the worker, the purpose, and how many it has made for them before;
            by default, the environments have episodes of several lengths.
        pause: seconds that a step takes, where a run must last for more than a moment.
    """

    def __init__(self, make: Make | None = None, pause: float = 0.0) -> None:
        self.training: list[Any] = []
        self.evaluation: list[Any] = []
        self._make = make or self._by_length
        self._pause = pause
        self._lock = threading.Lock()
        self._calls: Counter[tuple[int, bool]] = Counter()

    def __call__(self, index: int, test: bool) -> gym.Env:
        """What a worker, or the evaluation, asks for."""
        with self._lock:
            number = self._calls[index, test]
            self._calls[index, test] += 1
            env = self._make(index, test, number)
            (self.evaluation if test else self.training).append(env)
            return env

    def _by_length(self, index: int, test: bool, number: int) -> gym.Env:
        rewards = (1.0,) * LENGTHS[number % len(LENGTHS)]
        if test or not self._pause:
            return _Env(worker=index, rewards=rewards)
        return _Env(worker=index, rewards=rewards, on_step=lambda: time.sleep(self._pause))

    @property
    def all(self) -> list[Any]:
        """All that were made."""
        return self.training + self.evaluation

    @property
    def steps(self) -> int:
        """How many steps the workers' environments have really taken."""
        return sum(len(env.history) for env in self.training)


def train(
    outdir: Path,
    make_env: Callable[[int, bool], gym.Env],
    workers: int = WORKERS,
    on_tick: Callable[[int, Progress], None] = lambda step, progress: None,
    **settings: Any,
) -> A3CAgent:
    """A short run with linear nets, unless told otherwise."""
    start = time.monotonic()

    def tick(step: int, progress: Progress) -> None:
        assert time.monotonic() - start < 20, "the run does not end"
        on_tick(step, progress)

    defaults = {
        "agent": None if "make_agent" in settings else make_agent(KnownEnv()),
        "steps": 400,
        "eval_interval": 100,
        "eval_n_episodes": 3,
        "eval_envs": 3,
        "envs_per_worker": K,
        "t_max": T,
    }
    return train_agent_async(outdir, workers, make_env, on_tick=tick, **(defaults | settings))


def summary(outdir: Path) -> dict[str, Any]:
    """What summary.json holds."""
    return json.loads((outdir / "summary.json").read_text())


def scores(outdir: Path) -> list[dict[str, float]]:
    """The rows of scores.txt."""
    header, *rows = [line.split("\t") for line in (outdir / "scores.txt").read_text().splitlines()]
    return [dict(zip(header, map(float, row), strict=True)) for row in rows]


def assert_acts(directory: Path) -> A3CAgent:
    """The directory holds an agent with finite weights that acts."""
    agent = load_agent(directory)
    assert all(np.isfinite(weights).all() for weights in agent.model.get_weights())
    assert agent.act(KnownEnv().reset()[0]) in (0, 1)
    return agent


def assert_equal_weights(ours: A3CAgent, theirs: A3CAgent) -> None:
    """The nets hold the same numbers."""
    for array, other in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """However a run ends, all threads that it has started have ended."""
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


# Counting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 400])
def test_global_step(tmp_path: Path, steps: int) -> None:
    """It is the number of steps really taken, and goes beyond `steps` by less than W * K * T."""
    recorder = Recorder()
    ticks: list[int] = []
    train(tmp_path, recorder, steps=steps, on_tick=lambda step, progress: ticks.append(step))
    result = summary(tmp_path)
    assert result["steps"] == recorder.steps == ticks[-1]
    assert steps <= recorder.steps < steps + WORKERS * K * T
    assert ticks == sorted(ticks)
    ended = sum(step.truncated for env in recorder.training for step in env.history)
    assert result["episodes"] == ended


def test_end_of_a_run(tmp_path: Path) -> None:
    """The given agent has learned and is saved; every environment has been closed once."""
    recorder, agent = Recorder(), make_agent(KnownEnv())
    before = agent.clone()
    just_missed = float(np.mean(LENGTHS)) + 1e-6
    assert train(tmp_path, recorder, agent=agent, successful_score=just_missed) is agent
    assert summary(tmp_path)["stopped_by"] == "steps"
    assert not (tmp_path / "successful").exists()
    assert_equal_weights(agent, assert_acts(tmp_path / f"{recorder.steps}_finish"))
    with pytest.raises(AssertionError):
        assert_equal_weights(agent, before)
    assert (len(recorder.training), len(recorder.evaluation)) == (WORKERS * K, 3)
    assert [env.closings for env in recorder.all] == [1] * len(recorder.all)


def test_more_workers_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them get on: no environment takes less than a small part of its share."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    recorder = Recorder()
    train(tmp_path, recorder, workers=3, steps=6000)
    assert len(recorder.training) == 3 * K
    assert min(len(env.history) for env in recorder.training) >= 60


def test_make_agent(tmp_path: Path) -> None:
    """Makes the agent where none is given."""
    made: list[A3CAgent] = []

    def make(index: int) -> A3CAgent:
        made.append(make_agent(KnownEnv()))
        return made[-1]

    assert train(tmp_path, Recorder(), make_agent=make, eval_interval=0) is made[0]
    assert len(scores(tmp_path)) == 1  # no evaluation but the last


def test_time_goes_on_during_an_evaluation(tmp_path: Path) -> None:
    """The seconds of a run are those that it took, however long the monitor was busy."""
    pauses = iter([1.5])  # the first step of an evaluation takes longer than the whole run

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Env(on_step=lambda: time.sleep(next(pauses, 0.0) if test else PAUSE))

    recorder = Recorder(make)
    settings = {"envs_per_worker": 1, "eval_interval": 20, "eval_n_episodes": 1}
    train(tmp_path, recorder, workers=1, steps=1000, **settings)
    assert summary(tmp_path)["seconds"] >= PAUSE * recorder.steps


# Evaluation -------------------------------------------------------------------------------------


def test_scores_file(tmp_path: Path) -> None:
    """One header, rows by steps, no two closer than the interval; the last is of the end."""
    train(tmp_path, Recorder(pause=PAUSE), steps=1500)
    steps = [int(row["steps"]) for row in scores(tmp_path)]
    assert len(steps) >= 2
    assert steps[-1] == summary(tmp_path)["steps"]
    assert all(later - earlier >= 100 for earlier, later in pairwise(steps[:-1]))
    assert steps == sorted(set(steps))
    means = {row["mean"] for row in scores(tmp_path)}
    assert means == {np.mean(LENGTHS)}
    assert summary(tmp_path)["best_score"] == summary(tmp_path)["final_score"] == np.mean(LENGTHS)
    assert_acts(tmp_path / "best")


def test_counts_of_a_row_are_of_one_moment(tmp_path: Path) -> None:
    """Steps and episodes of the weights that were evaluated, not of when that was over."""

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Env(rewards=(1.0,) * 5, on_step=lambda: time.sleep(20 * PAUSE if test else PAUSE))

    train(tmp_path, Recorder(make), steps=1500)
    for row in scores(tmp_path):
        assert row["episodes"] * 5 <= row["steps"]


def test_evaluation_by_seconds(tmp_path: Path) -> None:
    """In place of the steps."""
    train(tmp_path, Recorder(pause=PAUSE), steps=1500, eval_interval=10**9, eval_seconds=0.01)
    assert len(scores(tmp_path)) >= 2


def test_evaluation_changes_no_training(tmp_path: Path) -> None:
    """One worker learns the same with many evaluations as with none before the end."""
    agents = [
        train(tmp_path / str(interval), recorder, workers=1, steps=1000, eval_interval=interval)
        for interval, recorder in ((10, Recorder(pause=PAUSE)), (0, Recorder()))
    ]
    assert len(scores(tmp_path / "10")) > 1
    assert_equal_weights(*agents)


def test_evaluates_a_snapshot(tmp_path: Path) -> None:
    """What the workers do to the global weights meanwhile does not reach the evaluation."""
    agent = make_agent(KnownEnv())
    mark = 123.0

    checks = iter([True])  # the first step of all is the check's, before the run

    def learn() -> None:
        if next(checks, False):
            return
        agent.model.set_weights([np.full_like(w, mark) for w in agent.model.get_weights()])

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Env(on_step=learn if test else lambda: None)

    settings = {"successful_score": 5.0, "save_best_so_far_agent": False, "eval_envs": 1}
    train(tmp_path, Recorder(make), agent=agent, steps=10**9, **settings)
    assert not (tmp_path / "best").exists()  # it is not wanted
    for weights in assert_acts(tmp_path / "successful").model.get_weights():
        assert (np.abs(weights) < mark / 2).all()


def test_best_is_kept(tmp_path: Path) -> None:
    """`best/` is what had the highest mean, not what came last."""
    falling = iter(range(1000, 0, -1))

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Paying(falling) if test else _Env(on_step=lambda: time.sleep(PAUSE))

    train(tmp_path, Recorder(make), steps=1500, eval_n_episodes=1)
    means = [row["mean"] for row in scores(tmp_path)]
    result = summary(tmp_path)
    assert (result["best_score"], result["final_score"]) == (max(means), min(means))
    last = assert_acts(tmp_path / f"{result['steps']}_finish")
    with pytest.raises(AssertionError):
        assert_equal_weights(assert_acts(tmp_path / "best"), last)


class _Paying(_Env):
    """Each episode is one step and returns the next of some numbers."""

    def __init__(self, numbers: Iterator[int]) -> None:
        super().__init__(rewards=(0.0,))
        self._numbers = numbers

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(next(self._numbers)), *rest


def test_successful_score(tmp_path: Path) -> None:
    """Ends everybody long before `steps`, and saves the agent that has reached it."""
    recorder = Recorder()
    train(tmp_path, recorder, steps=10**9, successful_score=float(np.mean(LENGTHS)))
    result = summary(tmp_path)
    assert result["stopped_by"] == "successful_score"
    assert result["final_score"] == np.mean(LENGTHS)
    assert result["steps"] == recorder.steps < 10**9
    assert_acts(tmp_path / "successful")
    assert_acts(tmp_path / f"{result['steps']}_finish")
    assert {env.closings for env in recorder.all} == {1}


# Errors -----------------------------------------------------------------------------------------


def failing(
    where: Where, error: type[BaseException] = BrokenEnvError, test: bool = False
) -> Recorder:
    """Fails in worker 1, or in the evaluation.

    In the first environment of the worker, so that none is stepped or reset before it in vain;
    in the second of the evaluation, whose first is looked at before the run; and in the second if
    it is the constructor, so that there is one to be closed.
    """

    def make(index: int, for_test: bool, number: int) -> gym.Env:
        there = for_test == test and (test or index == 1)
        fails = there and number == (1 if where == "constructor" or test else 0)
        return _Env(where if fails else None, error=error, worker=index)

    return Recorder(make)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("constructor", BrokenEnvError),
        ("reset", BrokenEnvError),
        (7, BrokenEnvError),
        (7, SystemExit),
        (7, KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("test", [False, True], ids=["worker", "evaluation"])
def test_first_error(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    where: Where,
    error: type[BaseException],
    test: bool,
) -> None:
    """It ends the run soon and comes out as itself, with its traceback; the agent is saved."""
    recorder = failing(where, error, test)
    start = time.monotonic()
    with pytest.raises(error, match=f"^broken in {where}(?m:$)") as raised:
        train(tmp_path, recorder, steps=10**9, logger=logging.getLogger("mine"))
    assert time.monotonic() - start < 10
    assert type(raised.value) is error
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert frames[-1].name == "_fail_if"
    assert_saved_after(tmp_path, recorder)
    interrupted = error is KeyboardInterrupt
    assert summary(tmp_path)["stopped_by"] == ("interrupt" if interrupted else "error")
    logged = [record.getMessage() for record in caplog.records if record.name == "mine"]
    assert len(logged) == (0 if interrupted else 1)
    who = "monitor" if test else "worker 1"
    for line in logged:
        assert re.match(rf"the run ends at step \d+: {who} \(_Env\): .*broken in {where}", line)
        if sys.version_info >= (3, 11):  # below the traceback
            (note,) = raised.value.__notes__
            assert re.fullmatch(rf"in {who} \(_Env\), at global step \d+", note)


def assert_saved_after(outdir: Path, recorder: Recorder) -> None:
    """What an error leaves: the agent, a checkpoint of the same moment, closed environments."""
    steps = summary(outdir)["steps"]
    assert steps == recorder.steps
    agent = assert_acts(outdir / f"{steps}_except")
    _, checkpointed, snapshot, *_ = newest_checkpoint(outdir / "checkpoints")
    assert snapshot.global_step == steps
    assert_equal_weights(agent, checkpointed)
    assert not list(outdir.glob("*_finish"))
    assert [env.closings for env in recorder.all] == [1] * len(recorder.all)


@pytest.mark.parametrize("error", [BrokenEnvError, KeyboardInterrupt])
def test_error_in_the_last_evaluation(tmp_path: Path, error: type[BaseException]) -> None:
    """What has been trained is not lost."""
    recorder = failing(2, error, test=True)
    with pytest.raises(error):
        train(tmp_path, recorder, eval_interval=0)
    assert_saved_after(tmp_path, recorder)


class _FailsToClose(_Env):
    def close(self) -> None:
        super().close()
        raise RuntimeError("cannot be closed")


@pytest.mark.parametrize("test", [False, True], ids=["worker", "evaluation"])
def test_error_while_closing_hides_no_other(tmp_path: Path, test: bool) -> None:
    """The first error is what the caller must hear of."""

    def make(index: int, for_test: bool, number: int) -> gym.Env:
        return _FailsToClose(7 if test == for_test and number == 1 else None)

    with pytest.raises(BrokenEnvError):
        train(tmp_path, Recorder(make), steps=10**9)
    assert_acts(tmp_path / f"{summary(tmp_path)['steps']}_except")


def full_disk(*arguments: Any, **settings: Any) -> None:
    """Stands for a write that fails."""
    raise OSError("No space left on device")


def test_error_of_the_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be saved any more ends with that."""
    monkeypatch.setattr(monitor, "save_checkpoint", full_disk)
    recorder = Recorder()
    with pytest.raises(OSError, match="No space left"):
        train(tmp_path, recorder, steps=10**9, checkpoint_seconds=0.01)
    assert summary(tmp_path)["stopped_by"] == "error"
    assert {env.closings for env in recorder.all} == {1}


@pytest.mark.parametrize(
    ("saving", "test"), [("save_checkpoint", False), ("save_agent", False), ("save_agent", True)]
)
def test_error_while_saving_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: str, test: bool
) -> None:
    """The first error comes out, be it in the last evaluation, and what can be saved is."""
    monkeypatch.setattr(monitor, saving, full_disk)
    recorder = failing(2, BrokenEnvError, test)
    with pytest.raises(BrokenEnvError):
        train(tmp_path, recorder, steps=400 if test else 10**9, eval_interval=0)
    if saving == "save_checkpoint":
        assert_acts(tmp_path / f"{recorder.steps}_except")
    else:
        assert newest_checkpoint(tmp_path / "checkpoints").snapshot.global_step == recorder.steps
    assert {env.closings for env in recorder.all} == {1}


@pytest.mark.parametrize(
    ("error", "stopped_by"), [(KeyboardInterrupt, "interrupt"), (BrokenEnvError, "error")]
)
def test_error_in_the_calling_thread(
    tmp_path: Path, error: type[BaseException], stopped_by: str
) -> None:
    """Such as Ctrl-C: the run ends, and can be gone on with."""
    recorder = Recorder()

    def on_tick(step: int, progress: Progress) -> None:
        if step > 50:
            raise error("from on_tick")

    start = time.monotonic()
    with pytest.raises(error, match="from on_tick"):
        train(tmp_path, recorder, steps=10**9, on_tick=on_tick)
    assert time.monotonic() - start < 10
    assert_saved_after(tmp_path, recorder)
    assert summary(tmp_path)["stopped_by"] == stopped_by


def test_nan(tmp_path: Path) -> None:
    """A reward that is not a number ends the run; the worker is named, the weights are clean."""

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Env(rewards=(1.0, np.nan if index == 1 and not test else 1.0), worker=index)

    recorder = Recorder(make)
    with pytest.raises(
        FloatingPointError, match=r"^worker 1, global step \d+: the reward of environment \d is nan"
    ):
        train(tmp_path, recorder, steps=10**9)
    assert_acts(tmp_path / f"{summary(tmp_path)['steps']}_except")
    assert {env.closings for env in recorder.all} == {1}


# Refused before anything starts -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": None}, "agent"),
        ({"workers": 0}, "processes"),
        ({"envs_per_worker": 0}, "envs_per_worker"),
        ({"t_max": 0}, "t_max"),
        ({"eval_n_episodes": 0}, "eval_n_episodes"),
        ({"seed": -1}, "seed"),
    ],
)
def test_argument_that_cannot_be(tmp_path: Path, settings: Any, message: str) -> None:
    """Its name is in the message; no directory is made."""
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", Recorder(), **settings)
    assert not (tmp_path / "run").exists()


def test_faulty_environment(tmp_path: Path) -> None:
    """Said in the calling thread, before any worker exists."""
    threads: list[str] = []

    def make_env(index: int, test: bool) -> gym.Env:
        threads.append(threading.current_thread().name)
        return OldStyleEnv()

    with pytest.raises(ValueError, match="the old Gym interface"):
        train(tmp_path / "run", make_env)
    assert threads == [threading.main_thread().name]
    assert not (tmp_path / "run").exists()


def test_used_directory(tmp_path: Path) -> None:
    """It is not written into; a finished run may be resumed, though nothing is left to do."""
    train(tmp_path, Recorder())
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match=f"{tmp_path} holds a run already"):
        train(tmp_path, Recorder())
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before

    finished = summary(tmp_path)
    train(tmp_path, Recorder(), resume=True)
    for name in ("steps", "episodes", "best_score", "final_score", "stopped_by"):
        assert summary(tmp_path)[name] == finished[name]


# Seeds ------------------------------------------------------------------------------------------


def seed_of(env: KnownEnv) -> int:
    """The last that it was given: one of the evaluation's got another one for the check."""
    return [seed for seed in env.seeds if seed is not None][-1]


def test_all_seeds_differ(tmp_path: Path) -> None:
    """No two environments start alike, those of the evaluation included; each is seeded once."""
    recorder = Recorder()
    train(tmp_path, recorder, workers=4)
    seeds = [seed_of(env) for env in recorder.all]
    assert len(set(seeds)) == len(seeds) == 4 * K + 3
    assert all(isinstance(seed, int) for seed in seeds)
    for env in recorder.training:
        assert set(env.seeds[1:]) <= {None}


def test_workers_draw_different_actions(tmp_path: Path) -> None:
    """From the same weights and observations."""

    def make(index: int, test: bool, number: int) -> gym.Env:
        return _Env(rewards=(0.0,) * 8)  # the same observations for everybody

    recorder = Recorder(make)
    agent = make_agent(KnownEnv(), learning_rate=Schedule.constant(0.0))
    train(tmp_path, recorder, agent=agent, steps=3000)
    assert len(recorder.training) == WORKERS * K
    actions = {tuple(step.action for step in env.history[:30]) for env in recorder.training}
    assert len(actions) == len(recorder.training)


def test_seed_zero_is_a_seed(tmp_path: Path) -> None:
    """It repeats a run of one worker as any other does, and another seed does not."""

    def run(name: str, seed: int) -> tuple[list[int], list[int]]:
        recorder = Recorder()
        train(tmp_path / name, recorder, workers=1, steps=100, seed=seed, eval_interval=0)
        actions = [step.action for env in recorder.training for step in env.history]
        return [seed_of(env) for env in recorder.all], actions

    first, again, other = run("first", 0), run("again", 0), run("other", 1)
    assert first == again
    assert not set(first[0]) & set(other[0])
    assert first[1] != other[1]


# Going on -----------------------------------------------------------------------------------------


def counters(outdir: Path) -> tuple[int, int, int, int]:
    """Step, version, episodes and the optimizer's iterations of the newest checkpoint."""
    _, _, snapshot, *_ = newest_checkpoint(outdir / "checkpoints")
    return snapshot.global_step, snapshot.version, snapshot.episodes, int(snapshot.optimizer[0])


def test_resume(tmp_path: Path) -> None:
    """Step, episodes, version, optimizer, best score, time and scores.txt go on."""
    first = Recorder()
    agent = make_agent(KnownEnv(), optimizer=keras.optimizers.Adam())
    train(tmp_path, first, agent=agent)
    step, version, episodes, iterations = counters(tmp_path)
    assert iterations == version > 0
    earlier, rows = summary(tmp_path), scores(tmp_path)
    assert earlier["best_score"] == np.mean(LENGTHS)
    best = (tmp_path / "best" / "agent.json").stat().st_mtime_ns

    ticks: list[int] = []

    def on_tick(step: int, progress: Progress) -> None:
        ticks.append(step)
        assert progress.best_score == np.mean(LENGTHS)

    second = Recorder(lambda index, test, number: _Env(rewards=(1.0,)))  # less than before
    agent = make_agent(KnownEnv(), optimizer=keras.optimizers.Adam(), seed=9)
    train(tmp_path, second, agent=agent, steps=900, resume=True, on_tick=on_tick)
    later = summary(tmp_path)
    assert later["steps"] == step + second.steps >= 900
    assert ticks[0] >= step
    assert later["seconds"] > earlier["seconds"]
    assert later["best_score"] == np.mean(LENGTHS)
    assert later["final_score"] == 1.0
    assert (tmp_path / "best" / "agent.json").stat().st_mtime_ns == best

    step_2, version_2, episodes_2, iterations_2 = counters(tmp_path)
    assert step_2 == later["steps"]
    assert episodes_2 == later["episodes"] > episodes
    assert iterations_2 == version_2 > version

    assert (tmp_path / "scores.txt").read_text().count("steps\t") == 1
    np.testing.assert_equal(scores(tmp_path)[: len(rows)], rows)
    steps = [row["steps"] for row in scores(tmp_path)]
    assert len(steps) > len(rows)
    assert steps == sorted(set(steps))

    # It does not repeat what the run before it has seen.
    seeds = [{seed_of(env) for env in recorder.all} for recorder in (first, second)]
    assert not seeds[0] & seeds[1]


def test_resume_after_an_error(tmp_path: Path) -> None:
    """From where it was, not from the weights of the agent that is given."""
    with pytest.raises(BrokenEnvError):
        train(tmp_path, failing(7), steps=10**9)
    step = summary(tmp_path)["steps"]
    recorder = Recorder()
    agent = make_agent(KnownEnv(), seed=9, learning_rate=Schedule.constant(0.0))
    train(tmp_path, recorder, agent=agent, steps=step + 100, resume=True)
    assert summary(tmp_path)["steps"] == step + recorder.steps
    assert summary(tmp_path)["stopped_by"] == "steps"
    assert_equal_weights(agent, load_agent(tmp_path / f"{step}_except"))


def test_resume_passes_over_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The newest checkpoint that is whole is taken, and the other one named."""
    train(tmp_path, Recorder())
    step = summary(tmp_path)["steps"]
    whole = tmp_path / "checkpoints" / f"{step:012d}"
    damaged = shutil.copytree(whole, whole.with_name(f"{step + 100:012d}"))
    (damaged / "model.keras").write_bytes(b"")
    recorder = Recorder()
    train(tmp_path, recorder, steps=600, resume=True)
    assert str(damaged) in caplog.text
    assert summary(tmp_path)["steps"] == step + recorder.steps


def test_resume_without_a_checkpoint(tmp_path: Path) -> None:
    """One line that says so; nothing is written."""
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        train(tmp_path, Recorder(), resume=True)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_during_a_run(tmp_path: Path) -> None:
    """Every so many seconds, so that a power cut costs no more than that."""
    seen: set[str] = set()

    def on_tick(step: int, progress: Progress) -> None:
        if (tmp_path / "checkpoints").is_dir():
            seen.update(path.name for path in (tmp_path / "checkpoints").glob("[0-9]*"))
        if len(seen) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Recorder(), steps=10**9, checkpoint_seconds=0.01, on_tick=on_tick)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    assert newest_checkpoint(tmp_path / "checkpoints").snapshot.global_step >= int(max(seen))


# TensorBoard ------------------------------------------------------------------------------------

TAGS = {
    *(f"rollout/{name}" for name in ("episode_return", "episode_length")),
    *(f"eval/{name}" for name in ("mean", "median", "max", "min", "stdev", "episode_length")),
    *(f"loss/{name}" for name in ("policy", "value", "entropy", "total")),
    *(f"train/{name}" for name in ("learning_rate", "entropy_coefficient", "gradient_norm")),
    *(f"train/{name}" for name in ("explained_variance", "policy_lag")),
    *(f"time/{name}" for name in ("steps_per_second", *TIMES)),
    *(f"workers/{i}/steps_per_second" for i in range(WORKERS)),
}


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tag, read back by TensorBoard itself, with rising steps, also after a resume."""
    monkeypatch.setattr(reporting, "WRITE_SECONDS", 0.05)
    settings: dict[str, Any] = {
        "learning_rate": Schedule(1e-3, 0.0, 4000),
        "entropy_coefficient": Schedule(0.5, 0.0, 4000),
    }
    train(tmp_path, Recorder(), agent=make_agent(KnownEnv(), **settings), steps=2000)
    end = summary(tmp_path)["steps"]
    agent = make_agent(KnownEnv(), **settings)
    train(tmp_path, Recorder(), agent=agent, steps=4000, resume=True)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    assert set(events.Tags()["tensors"]) >= TAGS
    for tag in TAGS:
        steps = [event.step for event in events.Tensors(tag)]
        assert steps == sorted(steps), tag
        assert 0 <= steps[0] <= end < steps[-1] <= summary(tmp_path)["steps"], tag

    def values(tag: str) -> dict[int, float]:
        return {event.step: event.tensor_proto.float_val[0] for event in events.Tensors(tag)}

    for step, value in values("train/learning_rate").items():
        assert value == pytest.approx(max(0.0, 1e-3 * (1 - step / 4000)))
    for step, value in values("train/entropy_coefficient").items():
        assert value == pytest.approx(max(0.0, 0.5 * (1 - step / 4000)))
    for value in values("eval/mean").values():
        assert value == pytest.approx(np.mean(LENGTHS))
    assert set(values("eval/max").values()) == {max(LENGTHS)}
    for value in values("rollout/episode_return").values():
        assert min(LENGTHS) <= value <= max(LENGTHS)
    shares = [values(f"time/{part}") for part in TIMES]
    for step in shares[0]:
        assert sum(share[step] for share in shares) == pytest.approx(1.0, abs=1e-3)


# Learning ---------------------------------------------------------------------------------------


def test_learns_the_optimum(tmp_path: Path) -> None:
    """A small environment is solved: every one of 20 episodes pays all that can be had."""

    def make_env(index: int, test: bool) -> gym.Env:
        return ABCEnv()

    optimizer = keras.optimizers.RMSprop(rho=0.99, epsilon=1e-5)
    agent = make_agent(ABCEnv(), optimizer=optimizer, learning_rate=Schedule.constant(0.02))
    train(
        tmp_path,
        make_env,
        agent=agent,
        steps=100_000,
        eval_interval=1000,
        eval_n_episodes=20,
        successful_score=ABCEnv.OPTIMUM,
        envs_per_worker=8,
    )
    assert summary(tmp_path)["stopped_by"] == "successful_score"
    env, total = ABCEnv(), 0.0
    observation, _ = env.reset()
    for _ in range(3):
        observation, reward, *_ = env.step(int(agent.act(observation, greedy=True)))
        total += reward
    assert total == ABCEnv.OPTIMUM
