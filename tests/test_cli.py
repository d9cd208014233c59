"""The command line: what is printed, and with which code a program ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import newest_checkpoint, save_agent
from a3c_tf.commands.benchmark import benchmark as benchmark_command
from a3c_tf.commands.evaluate import evaluate as evaluate_command
from a3c_tf.commands.train import train as train_command
from a3c_tf.config import TrainConfig
from a3c_tf.envs.factory import RegisteredEnv
from a3c_tf.run_directory import read_config, write_config
from tests.envs import ABCEnv, FailingEnv, WordsEnv
from tests.helpers import make_agent

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty directory; ids that a test registers are gone after it."""
    monkeypatch.chdir(tmp_path)
    before = dict(gym.registry)
    gym.register("Words-v0", entry_point=WordsEnv)
    yield
    gym.registry.clear()
    gym.registry.update(before)


# Bad input ----------------------------------------------------------------------------------------


def assert_refused(code: int, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Code 2, nothing on standard output, and one line on standard error with all the words."""
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--env CartPol-v1", ("CartPol-v1", "near: CartPole-v1")),
        ("--env no_such_module:X-v0", ("no_such_module",)),
        ("--env Words-v0", ("observation space Text(", "not supported")),
        ("--env ALE/Pung-v5", ("ALE/Pung-v5", "near: ")),
        ("--env-args no_such=3", ("CartPole-v1", "no_such=3")),
        ("--env-args render_mode=human", ("render_mode=human", "watch")),
        ("--sticky-actions", ("sticky_actions", "CartPole-v1", "no Atari game")),
        ("--workers 0", ("--workers is 0", "at least 1")),
        ("--steps -5", ("--steps is -5", "at least 1")),
        ("--activation no_such", ("no_such",)),
        ("--preset no_such", ("'no_such'", "CartPole-v1")),
        ("--outdir used", ("--outdir used is not empty", "--resume used")),
        ("--outdir file/run", ("--outdir file/run cannot be written",)),
        ("--resume missing", ("missing", "no run directory")),
        ("--resume used", ("used", "no run directory")),
        ("--resume used --preset CartPole-v1", ("leave --preset out",)),
    ],
)
def test_train_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: tuple[str, ...]
) -> None:
    """One line that names what is wrong; no run directory is left."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "precious").touch()
    (tmp_path / "file").touch()
    assert_refused(train_command(arguments.split()), capsys, words)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "precious", "used"]


def test_train_refuses_the_old_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment of the user's own that returns four values from `step`."""
    (tmp_path / "old_module.py").write_text(
        "import gymnasium\n"
        "from tests.envs import OldStyleEnv\n"
        "gymnasium.register('Old-v0', entry_point=OldStyleEnv, max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("Old-v0", "4 values", "(observation, reward, terminated, truncated, info)")
    assert_refused(train_command(["--env", "old_module:Old-v0"]), capsys, words)
    assert not (tmp_path / "runs").exists()


def test_train_refuses_a_run_without_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was stopped before it began cannot be gone on with."""
    write_config(tmp_path, TrainConfig(preset="CartPole-v1"))
    code = train_command(["--resume", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 2
    assert err.startswith("error: no valid checkpoint")
    assert err.count("\n") == 1
    assert out.startswith("run ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("missing", ("missing holds no agent",)),
        ("empty", ("empty holds no agent",)),
        ("agent", ("agent is not in a run directory", "--env")),
        ("agent --env CartPol-v1", ("near: CartPole-v1",)),
        ("agent --env CartPole-v1 --episodes 0", ("--episodes is 0", "at least 1")),
        ("agent --env CartPole-v1 --seed -1", ("--seed is -1", "at least 0")),
        ("agent --env MountainCar-v0", ("(2,)", "(4,)")),
        ("agent --env-args a=1", ("--env-args is {'a': 1}", "--env")),
        ("damaged --env CartPole-v1", ("damaged cannot be loaded",)),
    ],
)
def test_evaluate_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: tuple[str, ...]
) -> None:
    """As `train` does."""
    (tmp_path / "empty").mkdir()
    agent = make_agent(RegisteredEnv("CartPole-v1")(0, True))
    for name in ("agent", "damaged"):
        save_agent(agent, tmp_path / name)
    (tmp_path / "damaged" / "model.keras").write_bytes(b"")
    assert_refused(evaluate_command(arguments.split()), capsys, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--workers 0", ("--workers is 0",)),
        ("--env CartPol-v1", ("near: CartPole-v1",)),
        ("--env Words-v0", ("not supported",)),
        ("--seconds 0", ("--seconds is 0",)),
    ],
)
def test_benchmark_refuses(
    capsys: pytest.CaptureFixture[str], arguments: str, words: tuple[str, ...]
) -> None:
    """As `train` does."""
    assert_refused(benchmark_command(arguments.split()), capsys, words)


@pytest.mark.parametrize("command", [train_command, evaluate_command, benchmark_command])
def test_help(command: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    """Names every flag and its default, and ends with 0."""
    with pytest.raises(SystemExit) as raised:
        command(["--help"])
    assert raised.value.code == 0
    assert "--env" in capsys.readouterr().out


def test_unknown_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Code 2, with the flag's name."""
    with pytest.raises(SystemExit) as raised:
        train_command(["--no-such-flag", "1"])
    assert raised.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_error_of_an_environment() -> None:
    """It is no bad input: it comes out as itself, with its traceback."""
    made = []

    def make(**settings: object) -> gym.Env:
        made.append(1)
        return FailingEnv(3 if len(made) > 1 else None)  # type: ignore[arg-type]

    gym.register("Fails-v0", entry_point=make)
    with pytest.raises(Exception, match="broken in 3"):
        train_command(["--env", "Fails-v0", "--outdir", "run", "--backend", "threads"])
    assert list(Path("run").glob("*_except"))


# Whole programs ---------------------------------------------------------------------------------


@contextmanager
def started(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script, in the directory of the test, as a user would call it."""
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run(script: str, *arguments: str) -> list[str]:
    """The lines that a script prints; it must succeed, and be quiet on standard error."""
    with started(script, *arguments) as process:
        out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    return out.splitlines()


def test_train_evaluate_resume() -> None:
    """The three commands that most people use, one after the other."""
    flags = ["--outdir", "run", "--steps", "3000", "--t-max", "4", "--eval-episodes", "5"]
    lines = run("train.py", *flags, "--eval-interval", "1000", "--backend", "threads")
    assert len(lines) < 50
    assert lines[0].startswith("preset CartPole-v1: env=CartPole-v1 ")
    assert "run directory: run" in lines
    summary = json.loads(Path("run/summary.json").read_text())
    assert 3000 <= summary["steps"] < 3000 + 2 * 8 * 4
    assert summary["stopped_by"] == "steps"
    assert any(f"after {summary['steps']:,} steps" in line for line in lines)
    for name in ("config.yaml", "scores.txt", "checkpoints", "best", f"{summary['steps']}_finish"):
        assert Path("run", name).exists(), name

    (line,) = run("evaluate.py", "run", "--episodes", "7", "--json")
    scores = json.loads(line)
    assert scores.keys() == {"mean", "stdev", "min", "max", "count"}
    assert scores["count"] == 7
    assert 8 <= scores["min"] <= scores["mean"] <= scores["max"] <= 500

    lines = run("train.py", "--resume", "run", "--steps", "4000")
    assert lines[0].startswith("run run: ")
    assert "steps=4000" in lines[1]
    later = json.loads(Path("run/summary.json").read_text())
    assert 4000 <= later["steps"] < 4000 + 2 * 8 * 4
    assert later["episodes"] > summary["episodes"]
    assert Path("run/scores.txt").read_text().count("steps\t") == 1


def test_atari() -> None:
    """An Atari game from pixels: its preset is found, and no library says anything."""
    flags = ["--env", "BreakoutNoFrameskip-v4", "--outdir", "run", "--steps", "400", "--t-max", "4"]
    flags += ["--envs-per-worker", "2", "--eval-episodes", "1", "--sticky-actions"]
    lines = run("train.py", *flags)
    assert lines[0].startswith("preset Atari: ")
    assert "reward_clip=1.0" in lines[0]
    assert "t_max=4" in lines[1]
    settings = read_config(Path("run"))
    assert (settings["env"], settings["preset"]) == ("BreakoutNoFrameskip-v4", "Atari")
    assert (settings["network"], settings["workers"], settings["t_max"]) == ("paper_cnn", 2, 4)

    (line,) = run("evaluate.py", "run", "--episodes", "1", "--json")
    assert 0 <= json.loads(line)["mean"] == int(json.loads(line)["mean"])

    run("train.py", "--resume", "run", "--steps", "500", "--backend", "threads")
    assert 500 <= json.loads(Path("run/summary.json").read_text())["steps"] < 520


def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best agent of a run is taken, else its last one; the same seed gives the same scores."""
    gym.register("Letters-v0", entry_point=ABCEnv)
    write_config(tmp_path, TrainConfig(env="Letters-v0"))
    agent = make_agent(ABCEnv())
    for name in ("9_finish", "10_except"):
        save_agent(agent, tmp_path / name)
    outputs = []
    for seed in ("0", "0", "2"):
        assert evaluate_command([str(tmp_path), "--episodes", "30", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert outputs[0].startswith(f"{tmp_path / '10_except'}: mean ")
    save_agent(agent, tmp_path / "best")
    assert evaluate_command([str(tmp_path), "--episodes", "3", "--greedy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 3
    assert evaluate_command([str(tmp_path), "--episodes", "3"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'best'}: ")


def test_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object: how fast, at what cost, and how fast it could be."""
    assert (
        benchmark_command(["--seconds", "0.3", "--workers", "1", "--backend", "threads", "--json"])
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    speed = json.loads(out)
    assert 0 < speed["steps_per_second"] < speed["env_only_steps_per_second"]
    assert speed["cpu_us_per_step"] > 0
    assert speed["start_seconds"] > 0
    assert sum(speed["time"].values()) == pytest.approx(1.0, abs=1e-3)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A program started in the background of a shell ignores Ctrl-C, and so do its children."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
def test_signals() -> None:
    """A run ends by SIGTERM as by Ctrl-C: saved, and it says how to go on."""
    codes = {signal.SIGTERM: 143, signal.SIGINT: 130}
    flags = ["--steps", str(10**9), "--t-max", "4", "--checkpoint-seconds", "0.1"]
    with ExitStack() as stack:
        processes = {
            number: stack.enter_context(
                started("train.py", "--outdir", number.name, "--backend", "threads", *flags)
            )
            for number in codes
        }
        for number, process in processes.items():
            deadline = time.monotonic() + 60
            while not list(Path(number.name).glob("checkpoints/0*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(number)
        for number, process in processes.items():
            out, err = process.communicate(timeout=30)
            assert (process.returncode, err) == (codes[number], "")
            assert out.splitlines()[-1] == f"interrupted; go on with: --resume {number.name}"
    for number in codes:
        summary = json.loads(Path(number.name, "summary.json").read_text())
        assert summary["stopped_by"] == "interrupt"
        agent = load_agent(f"{number.name}/{summary['steps']}_except")
        assert agent.act(np.zeros(4, np.float32)) in (0, 1)
        newest = newest_checkpoint(Path(number.name, "checkpoints")).snapshot
        assert newest.global_step == summary["steps"]


def test_imports_are_quiet() -> None:
    """No module prints anything; and bad flags are found before TensorFlow's slow import."""
    code = (
        "import importlib, pkgutil, sys, a3c_tf, a3c_tf.cli\n"
        "assert 'tensorflow' not in sys.modules\n"
        "for module in pkgutil.walk_packages(a3c_tf.__path__, 'a3c_tf.'):\n"
        "    importlib.import_module(module.name)\n"
        "for name in a3c_tf.__all__:\n"
        "    getattr(a3c_tf, name)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
