"""From a checkpoint back to a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c_tf.checkpoints import clean_up, newest_checkpoint, set_aside_after
from a3c_tf.errors import CheckpointError
from a3c_tf.parameters import ParameterServer
from a3c_tf.progress import Progress


def restore(
    server: ParameterServer, outdir: Path, logger: logging.Logger
) -> tuple[Progress, list[dict[str, Any]]]:
    """Puts the newest valid checkpoint into the server; the progress, and the workers' states."""
    clean_up(outdir)
    custom = server.agent.custom_objects()
    checkpoint = newest_checkpoint(outdir / "checkpoints", logger.warning, custom)
    for name in ("observation_space", "action_space"):
        saved, ours = getattr(checkpoint.agent, name), getattr(server.agent, name)
        if saved != ours:
            raise CheckpointError(
                f"{outdir} cannot be resumed like this: its {name} is {saved}, the agent's {ours}"
            )
    try:
        server.restore(checkpoint.snapshot)
    except ValueError as error:
        raise CheckpointError(f"{outdir} cannot be resumed like this: {error}") from error
    set_aside_after(checkpoint.path)
    return Progress(**checkpoint.progress), checkpoint.workers


def fit(states: Sequence[dict[str, Any]], workers: int, envs: int) -> bool:
    """Whether these are states of so many workers with so many environments each."""
    runners = [state["runner"] for state in states]
    same = all(runner is None or len(runner["resetting"]) == envs for runner in runners)
    return len(states) == workers and same


def whose_turn(states: Sequence[dict[str, Any]]) -> int:
    """The first of the workers that have had fewer turns than others, or the monitor."""
    rollouts = [state["rollouts"] for state in states]
    if len(set(rollouts)) > 1:
        return rollouts.index(min(rollouts))
    return len(rollouts)
