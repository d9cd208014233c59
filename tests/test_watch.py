"""`a3c-tf watch`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from a3c_tf import films
from a3c_tf.commands.watch import watch
from a3c_tf.envs.factory import RegisteredEnv
from tests.helpers import make_agent


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved agent, untrained."""
    directory: Path = tmp_path_factory.mktemp("agent")
    make_agent(RegisteredEnv("CartPole-v1")(0, True)).save(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a server."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(films.sys, "platform", "linux")


CARTPOLE = ["--env", "CartPole-v1"]


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_record(
    agent: str, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every episode is in the file, and its return is said."""
    path = tmp_path / f"film.{suffix}"
    assert watch([agent, *CARTPOLE, "--episodes", "2", "--record", str(path)]) == 0
    out = capsys.readouterr().out
    returns = re.findall(r"^episode \d: return (\d+), (\d+) steps$", out, re.MULTILINE)
    assert len(returns) == 2
    assert returns[0] != returns[1]
    total = sum(int(steps) for _, steps in returns)
    if suffix == "mp4":
        frames, _ = pytest.importorskip("imageio_ffmpeg").count_frames_and_secs(str(path))
        assert frames == total
    else:
        image, milliseconds = Image.open(path), 0
        for index in range(image.n_frames):  # those that are alike are one
            image.seek(index)
            milliseconds += image.info["duration"]
        assert milliseconds == total * 20
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_window(
    agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here it is one that nobody sees."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert watch([agent, *CARTPOLE, "--greedy"]) == 0
    assert "episode 1: return" in capsys.readouterr().out


def test_without_a_display(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, which says the way out."""
    assert watch([agent, *CARTPOLE]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--record" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--record", "film.avi"], "--record is film.avi; it must end in .mp4 or .gif"),
        (["--record", "nowhere/film.gif"], "--record is nowhere/film.gif; there is no directory"),
        (["--episodes", "0", "--record", "a.gif"], "--episodes is 0; it must be at least 1"),
        (["--env", "Acrobot-v1", "--record", "a.gif"], "Acrobot-v1 has the spaces"),
    ],
)
def test_refused(
    agent: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with code 2."""
    assert watch([agent, *CARTPOLE, *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_mp4_without_the_extra(
    agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to install, and what goes without."""
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    assert watch([agent, *CARTPOLE, "--record", "a.mp4"]) == 2
    assert "a3c_tf[video]'" in capsys.readouterr().err


def test_no_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without one."""
    assert watch([str(tmp_path), "--record", "a.gif"]) == 2
    assert "holds no agent" in capsys.readouterr().err
