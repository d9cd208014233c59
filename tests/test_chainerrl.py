"""What ChainerRL's users rely on: the rows of docs/from-chainerrl.md without another test."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import pstats
import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a3c_tf import monitor, training
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import Agent
from a3c_tf.agents.loading import load_agent
from a3c_tf.evaluation import Scores
from a3c_tf.quiet import keras
from a3c_tf.reports import TIMES
from a3c_tf.schedules import Schedule
from a3c_tf.training import train_agent_async
from tests.envs import KnownEnv, where_is
from tests.helpers import make_agent
from tests.test_hooks import BACKENDS, SummingA3C, SummingQ, numbers, pushes, summing
from tests.test_hooks import train as train_together
from tests.test_training import (
    PAUSE,
    WORKERS,
    K,
    Recorder,
    T,
    _Env,
    assert_equal_weights,
    scores,
    summary,
    train,
)

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "from-chainerrl.md").read_text()

CHAINERRL = {  # the arguments of its function, in order
    "outdir": inspect.Parameter.empty,
    "processes": inspect.Parameter.empty,
    "make_env": inspect.Parameter.empty,
    "profile": False,
    "steps": 8 * 10**7,
    "eval_interval": 10**6,
    "eval_n_steps": None,
    "eval_n_episodes": 10,
    "max_episode_len": None,
    "step_offset": 0,
    "successful_score": None,
    "agent": None,
    "make_agent": None,
    "global_step_hooks": (),
    "save_best_so_far_agent": True,
    "logger": None,
}


# Arguments ----------------------------------------------------------------------------------------


def test_signature() -> None:
    """ChainerRL's arguments, by position or by name; ours, by name only and with a default."""
    parameters = inspect.signature(train_agent_async).parameters
    ours = [(p.name, p.default) for p in list(parameters.values())[: len(CHAINERRL)]]
    assert ours == list(CHAINERRL.items())
    for name, parameter in parameters.items():
        if name in CHAINERRL:
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        else:
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
            assert parameter.default is not inspect.Parameter.empty


def test_all_arguments_by_position(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them arrives where it belongs."""
    caplog.set_level(logging.INFO)
    recorder, made, steps = Recorder(), [make_agent(KnownEnv())], []
    agent = train_agent_async(
        tmp_path,
        1,
        recorder,
        False,
        350,
        100,
        None,
        1,
        2,
        200,
        1e9,
        None,
        lambda index: made[index],
        [lambda env, agent, step: steps.append(step)],
        False,
        logging.getLogger("mine"),
    )
    assert agent is made[0]
    assert steps == list(range(201, summary(tmp_path)["steps"] + 1))
    assert 350 <= steps[-1] < 355
    assert scores(tmp_path)[-1]["max"] == 2.0
    assert not (tmp_path / "best").exists()
    assert {record.name for record in caplog.records} == {"mine"}


def test_make_agent_is_called_once(tmp_path: Path) -> None:
    """With 0, and not for each of the workers."""
    calls: list[int] = []

    def make(index: int) -> A3CAgent:
        calls.append(index)
        return make_agent(KnownEnv())

    train(tmp_path, Recorder(), make_agent=make, eval_interval=None)
    assert calls == [0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_n_episodes": None}, "eval_n_steps is None and eval_n_episodes is None"),
        ({"eval_n_steps": 7}, "eval_n_steps is 7 and eval_n_episodes is 3"),
        ({"step_offset": 100, "resume": True}, "step_offset is 100; a resumed run"),
        ({"eval_n_steps": 0, "eval_n_episodes": None}, "eval_n_steps is 0"),
        ({"max_episode_len": 0}, "max_episode_len is 0"),
        ({"step_offset": -1}, "step_offset is -1"),
        ({"eval_interval": -1}, "eval_interval is -1"),
        ({"backend": "fork"}, "backend is 'fork'.* threads, processes"),
        ({"t_max": 2.5}, "t_max is 2.5; it must be a whole number"),
        ({"steps": "1000"}, "steps is '1000'; it must be a number"),
        ({"global_step_hooks": print}, r"global_step_hooks=\[hook\]"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, settings: Any, message: str) -> None:
    """One line that names them; no environment and no directory is made."""
    recorder = Recorder()
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", recorder, **settings)
    assert recorder.all == []
    assert not (tmp_path / "run").exists()


# Environments -------------------------------------------------------------------------------------


class _Written(KnownEnv):
    """Writes to a file that it was made, and that it was closed, in whatever process it is."""

    def __init__(self, path: Path, index: int, test: bool) -> None:
        super().__init__(index)
        self._path = path
        self._name = f"{index} {test} {secrets.token_hex(4)}"
        self._write("made", self._name)
        self._write("parent", f"{test} {os.getppid()}")

    def close(self) -> None:
        self._write("closed", self._name)

    def _write(self, word: str, text: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{word} {text}\n")


class WholeRun(NamedTuple):
    """A run with evaluation and, where it can be had, a profile, and what its environments say."""

    outdir: Path
    made: list[str]
    closed: list[str]
    parents: list[str]
    profiled: bool


@pytest.fixture(scope="module", params=BACKENDS)
def whole_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """One for each backend."""
    directory = tmp_path_factory.mktemp(request.param)
    profiled = request.param == "processes" or sys.version_info < (3, 12)
    train_agent_async(
        directory / "run",
        WORKERS,
        lambda index, test: _Written(directory / "envs", index, test),
        profiled,
        agent=make_agent(KnownEnv()),
        steps=600,
        eval_interval=200,
        envs_per_worker=K,
        backend=request.param,
    )
    words = [line.split(" ", 1) for line in (directory / "envs").read_text().splitlines()]
    lists = ([text for word, text in words if word == of] for of in ("made", "closed", "parent"))
    return WholeRun(directory / "run", *lists, profiled)


def test_make_env_calls(whole_run: WholeRun) -> None:
    """Once for each environment of each worker, with its index; and once for evaluation."""
    calls = Counter(name.rsplit(" ", 1)[0] for name in whole_run.made)
    assert calls == {"0 True": 1} | {f"{index} False": K for index in range(WORKERS)}


def test_every_environment_is_closed_once(whole_run: WholeRun) -> None:
    """In whatever process it is, that of the evaluation included."""
    assert sorted(whole_run.closed) == sorted(whole_run.made)


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="spawned")
def test_nothing_is_forked_from_here(whole_run: WholeRun) -> None:
    """This program has used TensorFlow, whose threads a fork would lose."""
    assert f"False {os.getpid()}" not in whole_run.parents


def test_no_evaluation(tmp_path: Path) -> None:
    """`eval_interval=None`: no row, no score; the one environment of the check is closed."""
    recorder = Recorder()
    train(tmp_path, recorder, eval_interval=None)
    assert scores(tmp_path) == []
    assert summary(tmp_path)["final_score"] is None
    assert not (tmp_path / "best").exists()
    assert [env.closings for env in recorder.evaluation] == [1]
    assert len(recorder.evaluation[0].history) == 1


def lengths(env: Any) -> set[int]:
    """Of the episodes that an environment has come to the end of."""
    counts = Counter(where_is(step.observation)[1] for step in env.history)
    return {counts[episode] for episode in list(counts)[:-1]}


class _SaysReset(_Env):
    """Asks for a reset on the third step of an episode, in the manner of ChainerRL."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | {"needs_reset": where_is(result[0])[2] == 3}


@pytest.mark.parametrize(("kind", "limit"), [(_Env, 3), (_SaysReset, None)])
def test_episodes_are_truncated(tmp_path: Path, kind: type[_Env], limit: int | None) -> None:
    """After `max_episode_len` steps, or where info says so; in training and in evaluation."""
    recorder = Recorder(lambda index, test, number: kind())
    train(tmp_path, recorder, max_episode_len=limit)
    # One worker may have done all the steps before another one's first episode was over.
    assert set().union(*(lengths(env) for env in recorder.training)) == {3}
    assert {row["mean"] for row in scores(tmp_path)} == {3.0}


# Evaluation ---------------------------------------------------------------------------------------


def test_eval_n_steps(tmp_path: Path) -> None:
    """So many steps, in one environment; an unfinished episode counts for nothing."""
    recorder = Recorder(lambda index, test, number: _Env())
    train(tmp_path, recorder, eval_n_steps=12, eval_n_episodes=None)
    rows = scores(tmp_path)
    assert {row["mean"] for row in rows} == {5.0}
    (env,) = recorder.evaluation
    beyond = len(env.history) - 1 - 12 * len(rows)  # the check took one
    assert 0 <= beyond < 12  # the end of the run may break an evaluation off


def test_equal_score_is_not_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`best/` is saved once for a mean of 0.7 that comes again and again."""
    saved: list[str] = []
    save = monitor.save_agent

    def save_agent(agent: Agent, directory: Path) -> None:
        saved.append(directory.name)
        save(agent, directory)

    monkeypatch.setattr(monitor, "save_agent", save_agent)
    train(tmp_path, slow(0.7), steps=1500, eval_n_episodes=1)
    assert [row["mean"] for row in scores(tmp_path)[:2]] == [0.7, 0.7]
    assert saved.count("best") == 1


def slow(reward: float = 1.0) -> Recorder:
    """Episodes of one step, each step with a pause, so that there is time for evaluations."""
    return Recorder(
        lambda index, test, number: _Env(
            rewards=(reward,), on_step=lambda: time.sleep(0 if test else PAUSE)
        )
    )


def test_evaluation_hooks(tmp_path: Path) -> None:
    """All are called after each evaluation, with the agent that was evaluated; no return ends."""
    calls: list[tuple[Scores, int]] = []
    best: list[A3CAgent] = []

    def hook(agent: Agent, scores: Scores, step: int) -> object:
        if not best:
            best.append(load_agent(tmp_path / "best"))
            assert_equal_weights(agent, best[0])
        calls.append((scores, step))
        return True

    train(tmp_path, slow(), steps=1500, evaluation_hooks=[hook, lambda *arguments: "go on"])
    rows = scores(tmp_path)
    assert len(rows) >= 2
    assert [step for _, step in calls] == [row["steps"] for row in rows]
    for (of_hook, _), row in zip(calls, rows, strict=True):
        assert of_hook.summary()["mean"] == row["mean"]
    assert summary(tmp_path)["stopped_by"] == "steps"


def test_evaluation_hook_that_stops(tmp_path: Path) -> None:
    """The run ends if one of them returns "stop"; the others are called all the same."""
    calls: list[int] = []
    hooks = [
        lambda agent, scores, step: "stop" if step >= 300 else None,
        lambda agent, scores, step: calls.append(step),
    ]
    recorder = Recorder()
    train(tmp_path, recorder, steps=10**9, evaluation_hooks=hooks)
    assert summary(tmp_path)["stopped_by"] == "evaluation_hook"
    assert calls == [row["steps"] for row in scores(tmp_path)]
    assert calls[-1] >= 300 > max([0, *calls[:-1]])
    assert (tmp_path / f"{recorder.steps}_finish").is_dir()


# Going on from a step -----------------------------------------------------------------------------


def test_step_offset(tmp_path: Path) -> None:
    """Counting, the hooks and the evaluations begin there; `steps` is the total."""
    recorder, steps = Recorder(pause=PAUSE), []
    hook = [lambda env, agent, step: steps.append(step)]
    train(tmp_path, recorder, steps=2000, step_offset=1000, global_step_hooks=hook)
    total = summary(tmp_path)["steps"]
    assert total == 1000 + recorder.steps
    assert 2000 <= total < 2000 + WORKERS * K * T
    assert steps == list(range(1001, total + 1))
    rows = scores(tmp_path)
    assert len(rows) >= 2
    assert rows[0]["steps"] >= 1100


def test_step_offset_in_schedules(tmp_path: Path) -> None:
    """The learning rate is that of the global step: here its end, 0."""
    agent = make_agent(KnownEnv(), learning_rate=Schedule(1.0, 0.0, 1000))
    before = agent.clone()
    train(tmp_path, Recorder(), agent=agent, steps=1400, step_offset=1000, eval_interval=None)
    assert summary(tmp_path)["steps"] >= 1400
    assert_equal_weights(agent, before)


def test_step_offset_in_tensorboard(tmp_path: Path) -> None:
    """Every curve lies where the steps are."""
    train(tmp_path, Recorder(), steps=1400, step_offset=1000)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    steps = {event.step for tag in events.Tags()["tensors"] for event in events.Tensors(tag)}
    assert 1000 <= min(steps) <= max(steps) == summary(tmp_path)["steps"]


# What is written ----------------------------------------------------------------------------------


def test_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The given one gets everything: episodes of worker 0, a few of them, and evaluations."""
    caplog.set_level(logging.INFO)
    recorder = Recorder(
        lambda index, test, number: _Env(
            rewards=(1.0,) * (2 if index == 0 else 1), on_step=lambda: time.sleep(PAUSE)
        )
    )
    train(tmp_path, recorder, steps=1000, logger=logging.getLogger("mine"))
    assert {(record.name, record.levelname) for record in caplog.records} == {("mine", "INFO")}
    lines = [record.getMessage() for record in caplog.records]
    pattern = rf"outdir:{re.escape(str(tmp_path))} global_step:(\d+) local_step:(\d+) R:(\S+) "
    episodes = [match.groups() for line in lines if (match := re.match(pattern, line))]
    assert 1 <= len(episodes) <= 2 + 5 * summary(tmp_path)["seconds"]
    for global_step, local_step, episode_return in episodes:
        assert 0 < int(local_step) <= int(global_step)
        assert episode_return == "2.0"
    evaluations = [line for line in lines if line.startswith("evaluation at step ")]
    for line, row in zip(evaluations, scores(tmp_path), strict=True):
        assert line.startswith(f"evaluation at step {row['steps']:.0f}: ")
        assert f"'mean': {row['mean']}" in line


def test_profile(whole_run: WholeRun) -> None:
    """A file for each worker, which `pstats` reads, with the environments' steps in it."""
    if not whole_run.profiled:
        pytest.skip("cProfile cannot tell threads apart in this Python")
    files = sorted(path.name for path in whole_run.outdir.glob("profile-*"))
    assert files == [f"profile-{index}.out" for index in range(WORKERS)]
    calls = 0
    for name in files:
        functions: Any = pstats.Stats(str(whole_run.outdir / name)).stats  # type: ignore[attr-defined]
        for (file, _, function), numbers_ in functions.items():
            if function == "step" and file.endswith("tests/envs.py"):
                calls += numbers_[0]
    assert calls == summary(whole_run.outdir)["steps"]


def test_profile_of_threads_in_a_newer_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is refused, with the way out."""
    monkeypatch.setattr(training, "sys", SimpleNamespace(version_info=(3, 12)))
    with pytest.raises(ValueError, match=r"profile is True.* take backend='processes'"):
        train(tmp_path / "run", Recorder(), profile=True)


def test_time_shares(whole_run: WholeRun) -> None:
    """Where the workers' time went, all of it."""
    shares = summary(whole_run.outdir)["time"]
    assert tuple(shares) == TIMES
    assert all(share >= 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)


# Learning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SummingA3C, SummingQ])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_gradient_is_lost(tmp_path: Path, backend: str, kind: type[Agent]) -> None:
    """Four workers take 1 from every weight with each push."""
    settings = {"entropy_coefficient": Schedule.constant(1.0)} if kind is SummingA3C else {}
    agent = summing(kind, **settings)
    train_together(tmp_path, backend, agent, [], workers=4, steps=4000)
    assert pushes(tmp_path) > 300
    assert numbers(agent) == [-pushes(tmp_path)]


@pytest.fixture
def counting_agent() -> A3CAgent:
    """Its first layer counts, in a weight of whole numbers."""
    env = KnownEnv()
    inputs = keras.Input(env.observation_space.shape)
    hidden = keras.layers.Normalization(mean=None)(inputs)
    values = keras.layers.Reshape(())(keras.layers.Dense(1)(hidden))
    model = keras.Model(inputs, [keras.layers.Dense(2)(hidden), values])
    return A3CAgent(model, env.observation_space, env.action_space)


def test_weights_for_processes(tmp_path: Path, counting_agent: A3CAgent) -> None:
    """Only float32; with others, an error that names the way out, which is one."""
    settings: Any = {"agent": counting_agent, "eval_interval": None}
    with pytest.raises(ValueError, match="float32 weights; take backend='threads'"):
        train(tmp_path / "processes", Recorder(), backend="processes", **settings)
    train(tmp_path / "threads", Recorder(), backend="threads", **settings)


# Scripts ------------------------------------------------------------------------------------------

SCRIPT = """
import sys

import gymnasium as gym
import numpy as np

from a3c_tf import A3CAgent, build_actor_critic, train_agent_async


def make_env(worker_index, test):
    return gym.make("CartPole-v1")


def make_agent(worker_index):
    env = make_env(0, True)
    model = build_actor_critic(env.observation_space, env.action_space, hidden_sizes=())
    return A3CAgent(model, env.observation_space, env.action_space)


def main():
    print(make_agent(0).act(np.zeros(4)) in (0, 1))
    for number, backend in enumerate(sys.argv[1:]):
        train_agent_async(
            str(number),
            2,
            make_env,
            steps=200,
            eval_interval=None,
            make_agent=make_agent,
            backend=backend,
        )
        print(number)


"""


def run_script(
    directory: Path, text: str, *arguments: str, seconds: float = 100
) -> subprocess.CompletedProcess[str]:
    """A program of a user's, run in a directory."""
    (directory / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def test_runs_one_after_the_other(tmp_path: Path) -> None:
    """In one program, with each backend, after it has used TensorFlow itself."""
    text = SCRIPT + "if __name__ == '__main__':\n    main()\n"
    done = run_script(tmp_path, text, "processes", "threads", "threads", "processes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["True", "0", "1", "2", "3"]
    for number in range(4):
        assert summary(tmp_path / str(number))["stopped_by"] == "steps"


def test_missing_guard(tmp_path: Path) -> None:
    """One error, which says what to write; none of the children's own."""
    done = run_script(tmp_path, SCRIPT + "main()\n", "processes", seconds=60)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    (last,) = re.findall("^RuntimeError: .*", done.stderr, re.MULTILINE)
    assert "if __name__ == '__main__'" in last


# The document -------------------------------------------------------------------------------------


def test_tests_named_in_the_document() -> None:
    """All are there."""
    named = set(re.findall(r"(tests/\w+\.py)::(\w+)", DOCUMENT))
    assert len(named) > 50
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_arguments_in_the_document() -> None:
    """Each of ChainerRL's has a row."""
    rows = [line.split("|")[1] for line in DOCUMENT.splitlines() if line.startswith("| ")]
    for name in CHAINERRL:
        assert any(f"`{name}`" in row for row in rows), name


def test_example_runs(tmp_path: Path) -> None:
    """The new script of the document, with fewer steps."""
    _, example = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert "STEPS = 400_000" in example
    done = run_script(tmp_path, example.replace("STEPS = 400_000", "STEPS = 400"))
    assert (done.returncode, done.stderr) == (0, "")
    assert summary(tmp_path / "out")["stopped_by"] == "steps"
