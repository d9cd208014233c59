"""Reading runs, and the table of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from a3c_tf.commands.runs import runs as runs_command
from a3c_tf.config import TrainConfig
from a3c_tf.errors import ConfigError
from a3c_tf.runs import Run, differing_settings, load_runs
from a3c_tf.telemetry import SUMMARY, write_summary
from tests.helpers import write_run

ENV = "CartPole-v1"


def only(path: Path) -> Run:
    """The one run in a directory."""
    (run,) = load_runs(path)
    return run


# Reading ----------------------------------------------------------------------------------------


def test_finished_run(tmp_path: Path) -> None:
    """Settings, rows and summary; steps and minutes are those of the end."""
    run = only(write_run(tmp_path / "a", [3.0, 9.0, 5.0], "steps", seed=4, t_max=7))
    assert run.directory == tmp_path / "a"
    assert (run.settings["t_max"], run.settings["hidden_sizes"]) == (7, [64, 64])
    assert [row["steps"] for row in run.scores] == [1000, 2000, 3000]
    assert run.scores[1]["mean"] == 9.0
    assert run.scores[1].keys() >= {"episodes", "elapsed", *SUMMARY, "loss/policy"}
    assert (run.env, run.seed, run.best, run.final) == (ENV, 4, 9.0, 5.0)
    assert (run.steps, run.minutes, run.ended, run.damaged) == (3007, 3.5, "steps", ())


def test_unfinished_run(tmp_path: Path) -> None:
    """Without a summary: as far as the last evaluation; a row that is being written is none yet."""
    directory = write_run(tmp_path / "a", [3.0, 2.0])
    with (directory / "scores.txt").open("a") as file:
        file.write("3000\t3\t18")
    run = only(directory)
    assert (run.steps, run.minutes, run.ended) == (2000, 2.0, "unfinished")
    assert (run.best, run.final, run.damaged) == (3.0, 2.0, ())


def test_run_that_was_gone_on_with(tmp_path: Path) -> None:
    """The summary of its first end is out of date once there is a later evaluation."""
    directory = write_run(tmp_path / "a", [1.0, 2.0, 3.0], "interrupt")
    assert only(directory).ended == "interrupt"
    summary = json.loads((directory / "summary.json").read_text())
    write_summary(directory, summary | {"steps": 2999})
    run = only(directory)
    assert (run.ended, run.steps, run.minutes) == ("unfinished", 3000, 3.0)


def test_run_that_has_just_begun(tmp_path: Path) -> None:
    """Nothing is known but its settings."""
    run = only(write_run(tmp_path / "a"))
    assert (run.steps, run.minutes, run.best, run.final) == (None, None, None, None)
    assert (run.env, run.ended) == (ENV, "unfinished")


def test_run_without_settings(tmp_path: Path) -> None:
    """Such as one of `train_agent_async`, which writes no config.yaml."""
    directory = write_run(tmp_path / "a", [3.0], "steps")
    (directory / "config.yaml").unlink()
    run = only(directory)
    assert (run.env, run.seed, run.settings, run.damaged) == ("-", None, {}, ())
    assert (run.best, run.ended) == (3.0, "steps")


def test_which_directories_are_runs(tmp_path: Path) -> None:
    """All below, at any depth, each once; not those of others, or of a run that never began."""
    first = write_run(tmp_path / "x" / "a", [1.0])
    second = write_run(tmp_path / "x" / "y" / "b", [2.0])
    (tmp_path / "x" / "other").mkdir()
    (tmp_path / "x" / "other" / "config.yaml").write_text("theme: dark\n")
    (tmp_path / "x" / "refused").mkdir()
    (tmp_path / "x" / "refused" / "config.yaml").touch()
    assert [run.directory for run in load_runs(tmp_path)] == [first, second]
    both_ways = load_runs(str(second), tmp_path, tmp_path / "x" / "y" / ".." / "a")
    assert [run.directory for run in both_ways] == [second, first]


def test_no_runs(tmp_path: Path) -> None:
    """The path is named, and one that may be meant."""
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"runs holds no run"):
        load_runs(tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"rums is no directory \(near: runs\)"):
        load_runs(tmp_path / "rums")
    with pytest.raises(ConfigError, match=r"b is no directory$"):
        load_runs(tmp_path / "a" / "b")


DAMAGE: Mapping[str, Sequence[str]] = {
    "config.yaml": ["settings: [1", "settings", "\0", "- 1"],
    "scores.txt": [
        "",
        "\0\n",
        "steps\tmean\n",
        "steps\telapsed\tmean\tstdev\n1\t2\t3\n",
        "steps\telapsed\tmean\tstdev\n1\t2\t3\tx\n",
        "steps\telapsed\tmean\tstdev\ninf\t2\t3\t4\n",
        "steps\telapsed\tmean\tstdev\n1e300\t2\t3\t4\n",
        "steps\telapsed\tmean\tstdev\n1\tnan\t3\t4\n",
    ],
    "summary.json": [
        "[" * 100_000,
        f'{{"steps": 7, "seconds": 1{"0" * 400}, "stopped_by": "steps"}}',
        "",
        "{",
        "[1]",
        '{"steps": "7"}',
        '{"steps": 7, "stopped_by": "steps"}',
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DAMAGE.items() for text in texts]
)
def test_damaged_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    """The file is named, the rest is there, and the table too."""
    write_run(tmp_path / "a", [3.0], "steps")
    write_run(tmp_path / "b", [4.0], "steps")
    (tmp_path / "a" / name).write_text(text)
    run = load_runs(tmp_path)[0]
    assert run.damaged == (name,)
    assert (run.settings == {}) == (name == "config.yaml")
    assert (run.scores == []) == (name == "scores.txt")
    assert (run.summary == {}) == (name == "summary.json")
    assert runs_command([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [f"damaged: {name}" in line for line in lines].count(True) == 1


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Damaged as well."""
    directory = write_run(tmp_path / "a", [3.0], "steps")
    for name in DAMAGE:
        (directory / name).write_bytes(b"\xff\xfe")
    assert only(directory).damaged == tuple(DAMAGE)


def test_rows_before_the_damage(tmp_path: Path) -> None:
    """They are kept."""
    directory = write_run(tmp_path / "a", [3.0, 4.0])
    with (directory / "scores.txt").open("a") as file:
        file.write("\0\0\0\n")
    run = only(directory)
    assert (len(run.scores), run.final, run.damaged) == (2, 4.0, ("scores.txt",))


def test_settings_that_differ(tmp_path: Path) -> None:
    """Those alone, in the order of config.yaml, never the seed."""
    write_run(tmp_path / "a", seed=0, t_max=5, hidden_sizes=(8,))
    write_run(tmp_path / "b", seed=1, t_max=7, hidden_sizes=(8, 8))
    write_run(tmp_path / "c", seed=2, t_max=7, hidden_sizes=(8, 8))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "scores.txt").touch()
    runs = load_runs(tmp_path)
    assert list(differing_settings(runs).values()) == [
        "t_max=5 hidden_sizes=[8]",
        "t_max=7 hidden_sizes=[8, 8]",
        "t_max=7 hidden_sizes=[8, 8]",
        "",
    ]
    assert list(differing_settings(runs[1:3]).values()) == ["", ""]


def test_setting_that_a_run_does_not_have(tmp_path: Path) -> None:
    """As of an older version: it differs from those that have it."""
    for name in "ab":
        write_run(tmp_path / name, lstm=True)
    content = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    del content["settings"]["lstm"]
    (tmp_path / "b" / "config.yaml").write_text(yaml.safe_dump(content))
    assert list(differing_settings(load_runs(tmp_path)).values()) == ["lstm=True", "lstm=None"]


# The table --------------------------------------------------------------------------------------


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """What the command prints, by line and cell."""
    assert runs_command(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    assert "\x1b" not in out
    return [re.split("  +", line.strip()) for line in out.splitlines()]


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each run, however long; settings that differ within an environment."""
    long = "a" * 150
    write_run(tmp_path / "A" / "x", [3.0, 9.5], "steps", seed=1, t_max=7)
    write_run(tmp_path / "A" / "y", [3.0], "error", t_max=20, learning_rate=0.5)
    write_run(tmp_path / "B" / long, [-1e6], env="Acrobot-v1", seed=3)
    write_run(tmp_path / "B" / "z", env="Acrobot-v1", seed=4)
    header, *rows = table(capsys, str(tmp_path))
    columns = ["run", "env", "settings", "seed", "steps", "minutes", "best", "final"]
    assert header == [*columns, "ended by"]
    million = "-1,000,000.00"
    assert rows == [
        [f"B/{long}", "Acrobot-v1", "-", "3", "1,000", "1.0", million, million, "unfinished"],
        ["B/z", "Acrobot-v1", "-", "4", "-", "-", "-", "-", "unfinished"],
        ["A/x", ENV, "t_max=7 learning_rate=0.0007", "1", "2,007", "2.5", "9.50", "9.50", "steps"],
        ["A/y", ENV, "t_max=20 learning_rate=0.5", "0", "1,007", "1.5", "3.00", "3.00", "error"],
    ]


def test_table_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own directory is named."""
    write_run(tmp_path / "a", [1.0], "steps")
    assert table(capsys, str(tmp_path / "a"))[1][0] == "."


def test_default_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is `runs`; without it, one line and code 2."""
    monkeypatch.chdir(tmp_path)
    assert runs_command([]) == 2
    assert capsys.readouterr() == ("", "error: runs is no directory\n")
    write_run(tmp_path / "runs" / "a", [1.0])
    assert table(capsys)[1][0] == "a"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An object for each run, with all settings, also such as no run would write."""
    first = write_run(tmp_path / "a", [3.0, 2.0], "steps", seed=5)
    second = write_run(tmp_path / "b", [float("nan")])
    (second / "config.yaml").write_text("settings:\n  env: 2026-11-30\n")
    assert runs_command([str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    one, other = json.loads(out)
    settings = one.pop("settings")
    assert settings == TrainConfig(seed=5).to_dict()
    assert one == {
        "run": str(first),
        "env": ENV,
        "seed": 5,
        "steps": 2007,
        "minutes": 2.5,
        "best": 3.0,
        "final": 2.0,
        "ended": "steps",
        "damaged": [],
    }
    assert (other["env"], other["best"], other["ended"]) == ("2026-11-30", None, "unfinished")
