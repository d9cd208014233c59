"""Shows a saved agent at play."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console

from a3c_tf.commands.output import FAILED, OK, show, usage
from a3c_tf.commands.saved import SavedAgent, load_fitting
from a3c_tf.envs.trial import check_env
from a3c_tf.errors import ConfigError, at_the_end
from a3c_tf.films import MISSING_EXTRA, can_make_videos, has_display, recording
from a3c_tf.flags import parse_flags


@dataclass(frozen=True, kw_only=True)
class WatchConfig(SavedAgent):
    """Plays episodes with a saved agent, in a window or into a file, and prints their returns."""

    episodes: int = 1
    """Whole episodes."""
    record: Path | None = None
    """File to write instead of opening a window: .mp4 (needs the extra `video`), or .gif, which is
    small, with some of the frames only."""
    seed: int = 12345
    """Of environments and actions."""


def watch(arguments: Sequence[str]) -> int:
    """`a3c-tf watch`, `scripts/watch.py`."""
    config = parse_flags(WatchConfig, arguments, "watch")
    try:
        if config.episodes < 1:
            raise ConfigError(f"--episodes is {config.episodes}; it must be at least 1")
        if config.seed < 0:
            raise ConfigError(f"--seed is {config.seed}; it must be at least 0")
        _check_output(config.record)
        from a3c_tf.episodes import can_draw, drawn, filming
        from a3c_tf.evaluation import Evaluator

        agent_directory, make_env = config.find()
        env = make_env(0, True)
        spaces = check_env(env)
        env.close()
        render_mode = "rgb_array" if config.record else "human"
        if not can_draw(env, render_mode):
            raise ConfigError(f"{make_env.env_id} cannot be watched: it has no {render_mode!r}")
        agent = load_fitting(agent_directory, make_env, spaces)
    except (ValueError, FileNotFoundError) as error:
        return usage(error)
    console, record = Console(), config.record
    player = Evaluator(agent, drawn(make_env, render_mode), 1, config.seed, config.greedy)
    try:
        with ExitStack() as until_the_end, at_the_end(player.close):
            films = [until_the_end.enter_context(recording(record))] if record else []
            for number in range(config.episodes):
                scores = player.run(number=number, observer=filming(films))
                assert scores is not None
                score = f"return {scores.returns[0]:g}, {scores.lengths[0]} steps"
                show(console, f"episode {number + 1}: {score}")
    except (OSError, ValueError) as error:  # of the file, or of an odd frame
        where = f"--record {record}" if record else "a window"
        print(f"error: {make_env.env_id} cannot go on in {where}: {error}", file=sys.stderr)
        return FAILED
    if record:
        show(console, f"recorded: {record}")
    return OK


def _check_output(record: Path | None) -> None:
    """Whether there is a window to draw in, or a file that can be written."""
    if record is None:
        if not has_display():
            raise ConfigError("there is no display; write a file with --record episode.gif")
        return
    if record.suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--record is {record}; it must end in .mp4 or .gif")
    if record.suffix == ".mp4" and not can_make_videos():
        raise ConfigError(f"--record is {record}; {MISSING_EXTRA}, or take a .gif")
    if not record.absolute().parent.is_dir():
        raise ConfigError(f"--record is {record}; there is no directory {record.parent}")
    try:
        with TemporaryFile(dir=record.absolute().parent):
            pass
    except OSError as error:
        raise ConfigError(f"--record {record} cannot be written: {error.strerror}") from error
    if record.is_dir():
        raise ConfigError(f"--record is {record}, which is a directory")
