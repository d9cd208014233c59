"""Checkpoints: written whole or not at all, and the newest whole one is found."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from a3c_tf import checkpoints
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.loading import load_agent
from a3c_tf.checkpoints import load_checkpoint, newest_checkpoint, save_agent, save_checkpoint
from a3c_tf.errors import CheckpointError
from a3c_tf.parameters import ParameterServer, Snapshot
from a3c_tf.quiet import keras, tf
from tests.envs import KnownEnv
from tests.helpers import make_agent

PROGRESS = {"elapsed": 1.5, "best_score": None, "last_score": -2.0, "last_evaluation": 7}


def trained(optimizer: Any = None, seed: int = 0) -> tuple[A3CAgent, ParameterServer]:
    """An agent whose optimizer has something to remember, and its server at step 30."""
    agent = make_agent(KnownEnv(), optimizer=optimizer, seed=seed)
    server = ParameterServer(agent)
    push(server, 3)
    return agent, server


def push(server: ParameterServer, times: int) -> None:
    """Gradients 1, 2, 3, ...; each stands for 10 steps and 2 episodes."""
    agent = server.agent
    connection = server.connect(agent.clone().weights)
    size = sum(int(np.prod(variable.shape)) for variable in agent.trainable_variables)
    for i in range(times):
        connection.exchange(tf.fill([size], i + 1.0), 10, 2)


def save(root: Path, step: int, keep: int = 3) -> Path:
    """A checkpoint of some agent, said to be of a step."""
    agent, server = trained(seed=step)
    server.global_step = step
    return save_checkpoint(root, agent, server.snapshot(), PROGRESS, keep)


def assert_equal(ours: Snapshot, theirs: Snapshot) -> None:
    """Every array and every counter is the same."""
    for name in ("weights", "optimizer"):
        for array, other in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            np.testing.assert_array_equal(array, other)
    for name in ("global_step", "version", "episodes"):
        assert getattr(ours, name) == getattr(theirs, name)


def names(directory: Path) -> list[str]:
    """What lies in a directory, hidden files too."""
    return sorted(path.name for path in directory.iterdir())


# Round trip ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.RMSprop(rho=0.9, epsilon=1e-3), keras.optimizers.Adam(), None],
    ids=["rmsprop", "adam", "default"],
)
def test_round_trip(tmp_path: Path, optimizer: Any) -> None:
    """Weights, optimizer, counters and progress; and what follows is what would have followed."""
    agent, server = trained(optimizer)
    snapshot = server.snapshot()
    assert (snapshot.global_step, snapshot.version, snapshot.episodes) == (30, 3, 6)
    assert any(array.any() for array in snapshot.optimizer)
    path = save_checkpoint(tmp_path, agent, snapshot, PROGRESS)
    _, loaded, restored, progress, _ = load_checkpoint(path)
    assert_equal(restored, snapshot)
    assert progress == PROGRESS
    assert loaded.hyperparameters == agent.hyperparameters
    assert loaded.optimizer.get_config() == agent.optimizer.get_config()

    another = ParameterServer(loaded)
    another.restore(restored)
    assert_equal(another.snapshot(), snapshot)
    push(server, 2)
    push(another, 2)
    assert_equal(another.snapshot(), server.snapshot())


def test_checkpoint_is_an_agent(tmp_path: Path) -> None:
    """`load_agent` takes it as it takes any other."""
    assert load_agent(save(tmp_path, 30)).act(KnownEnv().reset()[0]) in (0, 1)


def test_keeps_the_newest(tmp_path: Path) -> None:
    """By steps, also where the number of digits differs."""
    for step in (5, 90, 1000, 20000):
        save(tmp_path, step, keep=2)
    assert [int(name) for name in names(tmp_path)] == [1000, 20000]


def test_same_step_again(tmp_path: Path) -> None:
    """The later one replaces the earlier."""
    save(tmp_path, 30)
    agent, server = trained(seed=1)
    save_checkpoint(tmp_path, agent, server.snapshot(), PROGRESS | {"last_score": 9.0})
    _, _, snapshot, progress, _ = newest_checkpoint(tmp_path)
    assert_equal(snapshot, server.snapshot())
    assert progress["last_score"] == 9.0
    assert len(names(tmp_path)) == 1


# Whole or not at all ------------------------------------------------------------------------------


def fail(*arguments: Any, **settings: Any) -> None:
    """Stands for a write on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (keras.Model, "save"),
        (np, "savez"),
        (checkpoints, "_checksum"),
        (checkpoints.os, "fsync"),
        (Path, "write_text"),
    ],
)
@pytest.mark.parametrize("step", [20, 10], ids=["new", "in place of one that is there"])
def test_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, step: int
) -> None:
    """It leaves nothing behind, and what was there before is whole."""
    path = save(tmp_path, 10)
    before = load_checkpoint(path).snapshot
    agent, server = trained(seed=5)
    server.global_step = step
    with monkeypatch.context() as patched:
        patched.setattr(target, name, fail)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, agent, server.snapshot(), PROGRESS, keep=1)
    assert names(tmp_path) == [path.name]
    assert_equal(newest_checkpoint(tmp_path).snapshot, before)


def test_agent_that_fails_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`best/` stays what it was until the new one is whole."""
    old, new = make_agent(KnownEnv(), seed=1), make_agent(KnownEnv(), seed=2)

    def saved() -> list[float]:
        return [float(w.sum()) for w in load_agent(tmp_path / "best").model.get_weights()]

    save_agent(old, tmp_path / "best")
    before = saved()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="No space left"):
            save_agent(new, tmp_path / "best")
    assert (saved(), names(tmp_path)) == (before, ["best"])
    save_agent(new, tmp_path / "best")
    assert saved() != before
    assert names(tmp_path) == ["best"]


def test_litter_of_a_killed_process(tmp_path: Path) -> None:
    """Half a checkpoint under its temporary name is no checkpoint, and is in nobody's way."""
    path = save(tmp_path, 10)
    shutil.copytree(path, tmp_path / f".{20:012d}.partial")
    assert newest_checkpoint(tmp_path).path == path
    save(tmp_path, 20)
    assert [int(name) for name in names(tmp_path)] == [10, 20]


# Damage -----------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    """Cuts off the second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def alter(path: Path) -> None:
    """Flips one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    """Leaves a file of no bytes."""
    path.write_bytes(b"")


FILES = ("model.keras", "agent.json", "optimizer.npz", "state.json", "manifest.json")


@pytest.mark.parametrize("damage", [truncate, alter, empty, Path.unlink])
@pytest.mark.parametrize("file", FILES)
def test_damaged(whole: Path, tmp_path: Path, file: str, damage: Callable[[Path], None]) -> None:
    """The newest valid one is taken, and each one passed over is named."""
    older, newest = tmp_path / f"{10:012d}", tmp_path / f"{20:012d}"
    for path in (older, newest):
        shutil.copytree(whole, path)
    damage(newest / file)
    warnings: list[str] = []
    assert newest_checkpoint(tmp_path, warnings.append).path == older
    assert len(warnings) == 1
    assert str(newest) in warnings[0]
    assert "\n" not in warnings[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to copy."""
    return save(tmp_path_factory.mktemp("whole"), 10)


def test_files_of_a_checkpoint(whole: Path) -> None:
    """Those that the tests above damage are all."""
    assert names(whole) == sorted(FILES)


def test_several_damaged(whole: Path, tmp_path: Path) -> None:
    """Passed over from the newest down."""
    paths = [tmp_path / f"{step:012d}" for step in (10, 20, 30)]
    for path in paths:
        shutil.copytree(whole, path)
    empty(paths[2] / "model.keras")
    for file in FILES:
        (paths[1] / file).unlink()
    warnings: list[str] = []
    assert newest_checkpoint(tmp_path, warnings.append).path == paths[0]
    for warning, path in zip(warnings, (paths[2], paths[1]), strict=True):
        assert str(path) in warning


def test_none_left(whole: Path, tmp_path: Path) -> None:
    """One line that names the directory."""
    shutil.copytree(whole, tmp_path / f"{10:012d}")
    empty(tmp_path / f"{10:012d}" / "manifest.json")
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=f"no valid checkpoint in {root}"):
            newest_checkpoint(root)
