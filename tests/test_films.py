"""Thinned frames, GIFs and videos."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from a3c_tf import films
from a3c_tf.films import BYTES, FRAMES, Animation, Scene, Video, has_display, recording
from a3c_tf.thinning import Thinned
from tests.envs import KnownEnv
from tests.helpers import vector

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


class Drawn(Scene):
    """A scene that has been drawn already."""

    fps = 25.0

    def __init__(self, frame: Any) -> None:
        self.__dict__["frame"] = np.asarray(frame, np.uint8)


class NotToBeDrawn:
    """A scene that nobody should look at."""

    @property
    def frame(self) -> Any:
        """Nobody asks for it."""
        raise AssertionError

    fps = 25.0


def moving(step: int, size: tuple[int, int] = (60, 80)) -> Drawn:
    """A white column on black, one pixel further each step."""
    frame = np.zeros((*size, 3), np.uint8)
    frame[:, step % size[1]] = 255
    return Drawn(frame)


@pytest.mark.parametrize("length", [1, 4, 5, 9, 100, 1000])
def test_thinned(length: int) -> None:
    """At most so many, evenly spread, from the first on, and at least half as many."""
    thinned: Thinned[int] = Thinned(4)
    for i in range(length):
        if thinned.wanted():
            thinned.add(i)
    assert thinned.items == list(range(0, length, thinned.stride))
    assert min(length, 3) <= len(thinned.items) <= 4


def test_unwanted_frames_are_not_drawn() -> None:
    """Which is most of the cost of a long episode."""
    animation = Animation()
    for step in range(FRAMES + 1):
        animation.see(moving(step))
    animation.see(NotToBeDrawn())  # type: ignore[arg-type]


def opened(animation: Animation) -> Image.Image:
    """The animation as a browser gets it."""
    gif = animation.gif()
    assert gif is not None
    image: Image.Image = Image.open(BytesIO(gif.data))
    assert image.size == (gif.width, gif.height)
    assert image.format == "GIF"
    return image


def test_animation() -> None:
    """Frames in order and in time; it begins again after the last one."""
    animation = Animation()
    for step in range(10):
        animation.see(moving(step))
    image = opened(animation)
    assert (image.n_frames, image.info["duration"], image.info["loop"]) == (10, 40, 0)
    for step in range(10):
        image.seek(step)
        pixels = np.asarray(image.convert("L"))
        assert pixels[0].argmax() == step
        assert pixels[0].max() > 200


def test_long_animation() -> None:
    """It is shown in fast motion, not slowly, and is not too wide."""
    animation = Animation()
    for step in range(20 * FRAMES):
        animation.see(moving(step, (500, 900)))
    image = opened(animation)
    assert FRAMES / 2 <= image.n_frames <= FRAMES
    assert image.info["duration"] == films.SLOWEST
    assert image.size == (225, 125)


def test_noisy_animation() -> None:
    """Frames are left out until it is small enough."""
    noise = np.random.default_rng(0)
    animation = Animation()
    for _ in range(FRAMES):
        animation.see(Drawn(noise.integers(0, 255, (240, 240, 3))))
    gif = animation.gif()
    assert gif is not None
    assert BYTES / 4 < len(gif.data) <= BYTES


def test_nothing_seen() -> None:
    """There is no animation of it."""
    assert Animation().gif() is None


@pytest.mark.parametrize("drawn", [None, (None,), ([1, 2],), (np.zeros((4, 4, 3)),)])
def test_not_drawn(monkeypatch: pytest.MonkeyPatch, drawn: Any) -> None:
    """An environment that returns something else says so."""
    envs = vector(KnownEnv())
    monkeypatch.setattr(envs, "render", lambda: drawn)
    with pytest.raises(ValueError, match=r"render\(\) returned"):
        _ = Scene(envs).frame


@pytest.mark.parametrize("size", [(60, 80), (61, 81)])
def test_video(tmp_path: Path, size: tuple[int, int]) -> None:
    """Every frame is in it, also in odd sizes; nothing else is left."""
    path = tmp_path / "videos" / "7.mp4"
    video = Video(path)
    for step in range(75):
        video.see(moving(step, size))
        assert not path.exists()
    video.close()
    assert [p.name for p in path.parent.iterdir()] == ["7.mp4"]
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (75, 3.0)


def test_video_that_is_given_up(tmp_path: Path) -> None:
    """Nothing is left of it."""
    video = Video(tmp_path / "7.mp4")
    video.see(moving(0))
    video.close(keep=False)
    video.close()
    assert not list(tmp_path.iterdir())


def test_frames_of_two_sizes(tmp_path: Path) -> None:
    """They do not go into one video."""

    def record() -> None:
        with recording(tmp_path / "a.mp4") as film:
            film.see(moving(0))
            film.see(moving(0, (60, 81)))

    with pytest.raises(ValueError, match=r"\(60, 81, 3\), the first had \(60, 80, 3\)"):
        record()
    assert not list(tmp_path.iterdir())


def test_has_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that a window needs; other systems have a screen."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert not has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert has_display()
