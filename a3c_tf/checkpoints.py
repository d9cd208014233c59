"""The full state of a training run on disk: written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from a3c_tf.agents.base import Agent
from a3c_tf.agents.loading import load_agent
from a3c_tf.errors import CheckpointError
from a3c_tf.parameters import Snapshot

MANIFEST = "manifest.json"  # written last: its presence and checksums say "complete"
OPTIMIZER = "optimizer.npz"
STATE = "state.json"


def save_agent(agent: Agent, directory: Path) -> None:
    """Writes an agent so that the directory appears complete or not at all."""
    _write_whole(directory, agent.save)


def clean_up(directory: Path) -> None:
    """Puts right what a program that was killed while it wrote has left in a run directory.

    An agent that was to be replaced by a newer one comes back, unless that one is there.
    """
    for old in directory.glob(".*.old"):
        name = directory / old.name.removeprefix(".").removesuffix(".old")
        if name.exists():
            shutil.rmtree(old)
        else:
            old.rename(name)
    for partial in (*directory.glob(".*.partial"), *directory.glob("checkpoints/.*.partial")):
        shutil.rmtree(partial)


def save_checkpoint(
    root: Path, agent: Agent, snapshot: Snapshot, progress: dict[str, Any], keep: int = 3
) -> Path:
    """Writes `root/<global step>/` and removes all but the newest `keep`.

    Args:
        root: the run's `checkpoints/`.
        agent: holds the snapshot's weights.
        snapshot: the weights, optimizer state and counters of one moment.
        progress: what else must survive, as JSON: best score, elapsed seconds.
        keep: how many checkpoints stay.
    """

    def write(directory: Path) -> None:
        agent.save(directory)
        np.savez(directory / OPTIMIZER, *snapshot.optimizer)
        counters = {
            "global_step": snapshot.global_step,
            "version": snapshot.version,
            "episodes": snapshot.episodes,
        }
        (directory / STATE).write_text(json.dumps(counters | {"progress": progress}) + "\n")
        checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
        (directory / MANIFEST).write_text(json.dumps(checksums, indent=2) + "\n")

    path = root / f"{snapshot.global_step:012d}"
    _write_whole(path, write)
    for old in _steps(root)[:-keep]:
        shutil.rmtree(old)
    return path


def load_checkpoint(path: Path) -> tuple[Agent, Snapshot, dict[str, Any]]:
    """Reads a checkpoint: the agent, the server's state, and what was given as `progress`.

    Raises:
        CheckpointError: a file is missing or does not match its checksum.
    """
    try:
        checksums = json.loads((path / MANIFEST).read_text())
        for name, checksum in checksums.items():
            if _checksum(path / name) != checksum:
                raise CheckpointError(f"{path}: {name} has been altered")
        agent = load_agent(path)
        with np.load(path / OPTIMIZER, allow_pickle=False) as arrays:
            optimizer = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
        state = json.loads((path / STATE).read_text())
        progress = state.pop("progress")
        weights = [variable.numpy() for variable in agent.weights]
        return agent, Snapshot(weights, optimizer, **state), progress
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def newest_checkpoint(root: Path, warn: Any = None) -> tuple[Path, Agent, Snapshot, dict[str, Any]]:
    """The newest checkpoint that is whole.

    Args:
        root: the run's `checkpoints/`.
        warn: called with a line for each newer one that had to be passed over.

    Raises:
        CheckpointError: there is none.
    """
    for path in reversed(_steps(root)):
        try:
            return (path, *load_checkpoint(path))
        except CheckpointError as error:
            if warn:
                warn(f"checkpoint passed over: {error}")
    raise CheckpointError(f"no valid checkpoint in {root}")


def _steps(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.name.isdecimal())


def _write_whole(directory: Path, write: Any) -> None:
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
