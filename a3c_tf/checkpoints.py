"""The full state of a training run on disk: written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from a3c_tf.agents.base import Agent
from a3c_tf.agents.loading import load_agent
from a3c_tf.errors import CheckpointError
from a3c_tf.parameters import Snapshot

MANIFEST = "manifest.json"  # written last: its presence and checksums say "complete"
OPTIMIZER = "optimizer.npz"
STATE = "state.json"
WORKER = "worker-{}.npz"


def save_agent(agent: Agent, directory: Path) -> None:
    """Writes an agent so that the directory appears complete or not at all."""
    _write_whole(directory, agent.save)


def clean_up(directory: Path) -> None:
    """Puts right what a program that was killed while it wrote has left in a run directory.

    An agent that was to be replaced by a newer one comes back, unless that one is there.
    """
    for old in (*directory.glob(".*.old"), *directory.glob("checkpoints/.*.old")):
        name = old.parent / old.name.removeprefix(".").removesuffix(".old")
        if name.exists():
            _remove(old)
        else:
            old.rename(name)
    for partial in (*directory.glob(".*.partial"), *directory.glob("checkpoints/.*.partial")):
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def save_checkpoint(
    root: Path,
    agent: Agent,
    snapshot: Snapshot,
    progress: dict[str, Any],
    keep: int = 3,
    workers: Sequence[dict[str, Any]] = (),
) -> Path:
    """Writes `root/<global step>/` and removes all but the newest `keep`.

    Args:
        root: the run's `checkpoints/`.
        agent: holds the snapshot's weights.
        snapshot: the weights, optimizer state and counters of one moment.
        progress: what else must survive, as JSON: best score, elapsed seconds.
        keep: how many checkpoints stay.
        workers: their states, where they can be gone on from.
    """

    def write(directory: Path) -> None:
        agent.save(directory)
        np.savez(directory / OPTIMIZER, *snapshot.optimizer)
        for worker in workers:
            np.savez(directory / WORKER.format(worker["index"]), *worker["weights"])
        state = {
            "global_step": snapshot.global_step,
            "version": snapshot.version,
            "episodes": snapshot.episodes,
            "progress": progress,
            "workers": [{k: v for k, v in w.items() if k != "weights"} for w in workers],
        }
        (directory / STATE).write_text(json.dumps(state) + "\n")
        checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
        (directory / MANIFEST).write_text(json.dumps(checksums, indent=2) + "\n")

    path = root / f"{snapshot.global_step:012d}"
    _write_whole(path, write)
    for old in _steps(root)[:-keep]:
        shutil.rmtree(old)
    return path


class Checkpoint(NamedTuple):
    """What was read from a checkpoint.

    Attributes:
        path: its directory.
        agent: with the saved weights.
        snapshot: the server's state.
        progress: what was given to `save_checkpoint`.
        workers: the states that were given to it.
    """

    path: Path
    agent: Agent
    snapshot: Snapshot
    progress: dict[str, Any]
    workers: list[dict[str, Any]]


def load_checkpoint(path: Path, custom_objects: dict[str, Any] | None = None) -> Checkpoint:
    """Reads a checkpoint; nothing in it is executed.

    Args:
        path: its directory.
        custom_objects: see `load_agent`.

    Raises:
        CheckpointError: a file is missing or does not match its checksum.
    """
    try:
        checksums = json.loads((path / MANIFEST).read_text())
        for name, checksum in checksums.items():
            if _checksum(path / name) != checksum:
                raise CheckpointError(f"{path}: {name} has been altered")
        agent = load_agent(path, custom_objects=custom_objects)
        optimizer = _load_arrays(path / OPTIMIZER)
        state = json.loads((path / STATE).read_text())
        progress, workers = state.pop("progress"), state.pop("workers")
        for worker in workers:
            worker["weights"] = _load_arrays(path / WORKER.format(worker["index"]))
        weights = [variable.numpy() for variable in agent.weights]
        return Checkpoint(path, agent, Snapshot(weights, optimizer, **state), progress, workers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def newest_checkpoint(
    root: Path,
    warn: Callable[[str], None] = lambda line: None,
    custom_objects: dict[str, Any] | None = None,
) -> Checkpoint:
    """The newest checkpoint that is whole.

    Args:
        root: the run's `checkpoints/`.
        warn: called with a line for each newer one that had to be passed over.
        custom_objects: see `load_agent`.

    Raises:
        CheckpointError: there is none.
    """
    for path in reversed(_steps(root)):
        try:
            return load_checkpoint(path, custom_objects)
        except CheckpointError as error:
            warn(f"checkpoint passed over: {error}")
    raise CheckpointError(f"no valid checkpoint in {root}")


def set_aside_after(path: Path) -> None:
    """Renames the checkpoints of later steps, which could not be read, to `damaged-<step>`.

    They would count among the newest, which are kept.
    """
    for later in _steps(path.parent):
        if later.name > path.name:
            aside = later.with_name(f"damaged-{later.name}")
            shutil.rmtree(aside, ignore_errors=True)
            later.rename(aside)


def _load_arrays(path: Path) -> list[Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def _steps(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.name.isdecimal())


def _write_whole(directory: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a temporary directory, flushes it to disk, and renames it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        write(temporary)
        for path in temporary.iterdir():
            _flush(path)
        if directory.exists():  # e.g. a new best agent in place of the old one
            old = directory.with_name(f".{directory.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            directory.rename(old)
            temporary.rename(directory)
            shutil.rmtree(old)
        else:
            temporary.rename(directory)
        _flush(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(path: Path) -> None:
    """Sees to it that a file, or the names in a directory, outlive a power cut."""
    if os.name == "nt" and path.is_dir():  # Windows opens no directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
