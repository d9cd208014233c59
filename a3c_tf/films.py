"""Films of an agent: an animated GIF, small enough for TensorBoard, or an mp4 of everything."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from PIL import Image

from a3c_tf.thinning import Thinned

Frame = npt.NDArray[np.uint8]  # [height, width, 3]

FRAMES, PIXELS, COLOURS = 100, 240, 64  # of a GIF, at most
BYTES = 500_000  # of a GIF, at most
FASTEST, SLOWEST = 20, 100  # milliseconds a frame; browsers show shorter ones slowly
DEFAULT_FPS = 30

MISSING_EXTRA = "videos need: pip install 'a3c_tf[video]'"


def has_display() -> bool:
    """Whether a window can be opened; other systems than Unix always have a screen."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


class Scene:
    """What an environment looks like now; drawn once, and only if somebody asks."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs = envs

    @cached_property
    def frame(self) -> Frame:
        """The first environment, as it draws itself.

        Raises:
            ValueError: it does not return an array [height, width, 3] of bytes.
        """
        drawn: Any = self._envs.render()
        frame = np.asarray(drawn[0] if drawn else None)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ValueError(
                f"render() returned {frame.dtype} of the shape {frame.shape}; expected are uint8 "
                "of [height, width, 3]"
            )
        return frame

    @property
    def fps(self) -> float:
        """Frames a second that the environment asks for."""
        return float(self._envs.metadata.get("render_fps") or DEFAULT_FPS)


class Film(Protocol):
    """Something that watches an episode."""

    def see(self, scene: Scene) -> None:
        """Called after each step."""


class Gif(NamedTuple):
    """An animated image, encoded; sizes in pixels."""

    data: bytes
    width: int
    height: int


class Animation:
    """Some frames of an episode, for a GIF of at most `BYTES`.

    An episode that is too long is shown in fast motion.
    """

    def __init__(self) -> None:
        self._frames: Thinned[Image.Image] = Thinned(FRAMES)
        self._fps = float(DEFAULT_FPS)

    def see(self, scene: Scene) -> None:
        """Draws it small, if it is one of the frames that are kept."""
        if self._frames.wanted():
            image = Image.fromarray(scene.frame)
            image = image.reduce(-(-max(image.size) // PIXELS))  # by a whole number, which is fast
            self._frames.add(image.quantize(COLOURS, Image.Quantize.FASTOCTREE))
            self._fps = scene.fps

    def gif(self) -> Gif | None:
        """The animation; None if nothing has been seen."""
        frames, stride = list(self._frames.items), self._frames.stride
        if not frames:
            return None
        data = _encoded(frames, stride / self._fps)
        while len(data) > BYTES and len(frames) > 1:
            frames, stride = frames[::2], stride * 2
            data = _encoded(frames, stride / self._fps)
        return Gif(data, *frames[0].size)


def _encoded(frames: list[Image.Image], seconds: float) -> bytes:
    buffer = BytesIO()
    duration = min(max(round(1000 * seconds), FASTEST), SLOWEST)
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0
    )
    return buffer.getvalue()


def can_make_videos() -> bool:
    """Whether the extra `video` is installed."""
    return importlib.util.find_spec("imageio_ffmpeg") is not None


class Video:
    """An mp4 of every frame, written to disk while the episode goes on.

    Args:
        path: of the file; it gets this name when it is finished.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # of "a:b.mp4", ffmpeg would take "a" for a protocol
        self._partial = self._path.with_name(f".{path.stem}.partial.mp4")
        self._shape: tuple[int, ...] = ()
        self._writer: Any = None

    def see(self, scene: Scene) -> None:
        """Writes a frame.

        Raises:
            ValueError: it is of another size than the first.
        """
        frame = scene.frame
        if self._writer is None:
            self._shape = frame.shape
            self._writer = self._open(frame, scene.fps)
        if frame.shape != self._shape:
            raise ValueError(f"a frame has the shape {frame.shape}, the first had {self._shape}")
        self._writer.send(np.ascontiguousarray(frame))

    def _open(self, frame: Frame, fps: float) -> Any:
        from imageio_ffmpeg import write_frames

        self._path.parent.mkdir(parents=True, exist_ok=True)
        height, width = frame.shape[:2]
        logging.getLogger("imageio_ffmpeg").setLevel(logging.ERROR)  # a pixel more is no news
        writer = write_frames(
            self._partial,
            (width, height),
            fps=fps,
            macro_block_size=2,  # the codec wants even sizes
            ffmpeg_log_level="error",
            ffmpeg_timeout=10.0,
            output_params=["-threads", "1", "-preset", "veryfast"],  # the cores are the workers'
        )
        writer.send(None)
        return writer

    def close(self, keep: bool = True) -> None:
        """Finishes the file, or removes what there is of it."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
            if keep:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


@contextmanager
def recording(path: Path) -> Iterator[Film]:
    """A film that is at `path` (.gif or .mp4) after the block, unless that raises."""
    if path.suffix == ".gif":
        animation = Animation()
        yield animation
        if gif := animation.gif():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gif.data)
        return
    video = Video(path)
    try:
        yield video
    except BaseException:
        video.close(keep=False)
        raise
    video.close()
