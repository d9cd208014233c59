"""The command `a3c-tf`, and what all commands have in common: flags, help, plain output."""

from __future__ import annotations

import configparser
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from a3c_tf.cli import COMMANDS, command, dispatch
from tests.helpers import write_run

ROOT = Path(__file__).parents[1]
ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7])[;m]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory."""
    monkeypatch.chdir(tmp_path)


# a3c-tf COMMAND -----------------------------------------------------------------------------------


def test_every_command_is_there() -> None:
    """A file of the command's name with a function of the command's name, and a script."""
    files = {path.stem for path in (ROOT / "a3c_tf" / "commands").glob("*.py")}
    for name in COMMANDS:
        assert name in files
        assert callable(command(name))
        assert (ROOT / "scripts" / f"{name}.py").is_file()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_all_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Each with what it does."""
    assert dispatch(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("usage: a3c-tf COMMAND")
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "near"),
    [("trian", "train"), ("plots", "plot"), ("run", "runs"), ("eval", "evaluate")],
)
def test_unknown_command(capsys: pytest.CaptureFixture[str], name: str, near: str) -> None:
    """One line with the near one, and code 2."""
    assert dispatch([name, "--help"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.fullmatch(rf"error: no command '{name}' \(near: .*\b{near}\b.*\); .*\n", err)


def test_flag_in_place_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Code 2, and where to look."""
    assert dispatch(["--env", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == "error: no command '--env'; see a3c-tf --help\n"


def test_arguments_and_exit_code_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """To the command, and back from it."""
    assert dispatch(["runs", "missing"]) == 2
    assert "missing is no directory" in capsys.readouterr().err
    write_run(Path("here"), [1.0])
    assert dispatch(["runs", "here"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_installed_program() -> None:
    """What `setup.cfg` names as the program runs, and ends with the command's code."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    entry = setup["options.entry_points"]["console_scripts"]
    name, module, function = re.fullmatch(r"\s*(\S+) = ([\w.]+):(\w+)", entry).groups()  # type: ignore[union-attr]
    assert name == "a3c-tf"
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    for arguments, exit_code, word in (
        (["--help"], 0, "usage: a3c-tf COMMAND"),
        (["runs"], 2, "error: runs is no directory"),
        (["trian"], 2, "near: train"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == exit_code
        assert word in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["plot", "runs"])
def test_scripts(name: str) -> None:
    """They are the commands."""
    write_run(Path("runs/a"), [1.0, 2.0])
    script = [sys.executable, str(ROOT / "scripts" / f"{name}.py")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("curves: runs/curves.png" if name == "plot" else "CartPole-v1") in done.stdout


# Flags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("train --step 5", "--steps"),
        ("train --confg a.yaml", "--config"),
        ("train --learning-rat 1", "--learning-rate"),
        ("train --env CartPole-v1 --worker 2", "--workers"),
        ("train --no-lstmm", "--lstm"),
        ("evaluate run --episode 5", "--episodes"),
        ("plot runs --ot a.png", "--out"),
        ("runs --jsn", "--json"),
        ("benchmark --second 1", "--seconds"),
    ],
)
def test_wrong_flag(capsys: pytest.CaptureFixture[str], arguments: str, flag: str) -> None:
    """The right one is named, in plain text, with code 2; nothing is done."""
    with pytest.raises(SystemExit) as raised:
        dispatch(arguments.split())
    assert raised.value.code == 2
    out, err = capsys.readouterr()
    wrong = next(word for word in arguments.split() if word.startswith("--") and word != "--env")
    assert out == ""
    assert re.search(rf"Unrecognized options: {wrong}\b", err)
    assert re.search(rf"(meant|similar)[^\n]*:\s*\n.*{flag}\b", err, re.DOTALL)
    assert "For full helptext, run a3c-tf " + arguments.split()[0] in err
    assert err.isascii()
    assert ESCAPE not in err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --workers two", "--workers: invalid literal for int() with base 10: 'two'"),
        ("train --optimizer sgd", "'sgd' for argument '--optimizer'"),
        ("evaluate --episodes 5", "RUN"),
        ("evaluate run --episodes x", "--episodes"),
        ("runs --json 3 4", "4"),
    ],
)
def test_wrong_value(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    """As a wrong flag."""
    with pytest.raises(SystemExit) as raised:
        dispatch(arguments.split())
    assert raised.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words.lower() in err.lower()
    assert err.isascii()
    assert ESCAPE not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Plain when nobody sees it on a terminal, with code 0."""
    with pytest.raises(SystemExit) as raised:
        dispatch([name, "--help"])
    assert raised.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: a3c-tf {name} ")
    assert out.isascii()
    assert ESCAPE not in out
    assert err == ""


# Terminals --------------------------------------------------------------------------------------


def on_a_terminal(arguments: str, both: bool = True, **environment: str) -> str:
    """What a command shows there.

    Args:
        arguments: of `a3c-tf`.
        both: standard error as well; otherwise it is a pipe, whose text comes second.
        environment: variables beside the usual ones of a terminal.
    """
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", "from a3c_tf.cli import main; main()", *arguments.split()],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if both else subprocess.PIPE,
        env=variables | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment,
    ) as process:
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                text += chunk
        except OSError:  # Linux's way of saying that the other end is closed
            pass
        os.close(ours)
        if process.stderr is not None:
            text += process.stderr.read()
    return text.decode()


@pytest.mark.parametrize("arguments", ["runs --jsn", "runs --help", "runs"])
def test_no_color(arguments: str) -> None:
    """On a terminal there are colours, unless NO_COLOR asks for none."""
    write_run(Path("runs/a"), [1.0])
    assert COLOUR.search(on_a_terminal(arguments))
    assert not COLOUR.search(on_a_terminal(arguments, NO_COLOR="1"))


def test_errors_into_a_file() -> None:
    """They are plain, although standard output is a terminal."""
    text = on_a_terminal("runs --jsn", both=False)
    assert "--json" in text
    assert text.isascii()
    assert ESCAPE not in text


def without_reader(arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a program whose standard output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        return into(out, arguments)


def into(out: IO[str], arguments: list[str]) -> tuple[int, str]:
    """The same for any file as standard output."""
    command = [sys.executable, "-c", "from a3c_tf.cli import main; main()", *arguments]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["runs", "--help"], ["runs"], ["runs", "--json"]], ids=" ".join
)
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    """Nothing is said if nobody reads, as with `| head -1`; of a full disk it is."""
    write_run(Path("runs/a"), [1.0])
    assert without_reader(arguments) == (1, "")
    with Path("/dev/full").open("w") as full:
        assert into(full, arguments) == (
            1,
            "error: standard output cannot be written: No space left on device\n",
        )


# Repeating a run --------------------------------------------------------------------------------


def rows(directory: str) -> list[list[str]]:
    """Of scores.txt, without the column of times."""
    lines = [line.split("\t") for line in Path(directory, "scores.txt").read_text().splitlines()]
    time = lines[0].index("elapsed")
    return [line[:time] + line[time + 1 :] for line in lines]


def test_config_repeats_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With --deterministic and the run's own config.yaml: the same scores, bit for bit."""
    sizes = ["--steps", "1500", "--t-max", "4", "--eval-interval", "500", "--eval-episodes", "3"]
    flags = [*sizes, "--seed", "3", "--deterministic", "--workers", "2", "--learning-rate", "0.01"]
    assert dispatch(["train", "--outdir", "first", *flags]) == 0
    assert dispatch(["train", "--outdir", "again", "--config", "first/config.yaml"]) == 0
    assert "config first/config.yaml: env=CartPole-v1 " in capsys.readouterr().out
    assert rows("first") == rows("again")
    assert len(rows("first")) == 4
    assert Path("first/config.yaml").read_text() == Path("again/config.yaml").read_text()
    other = ["--config", "first/config.yaml", "--seed", "4"]
    assert dispatch(["train", "--outdir", "other", *other]) == 0
    assert rows("first") != rows("other")
