"""The run directory and its config.yaml."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from a3c_tf.config import TrainConfig
from a3c_tf.errors import ConfigError
from a3c_tf.run_directory import new_run_directory, read_config, write_config


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ("CartPole-v1", ["CartPole-v1"]),
        ("ALE/Pong-v5", ["ALE", "Pong-v5"]),
        ("my_package:MyEnv-v0", ["my_package-MyEnv-v0"]),
    ],
)
def test_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, parts: list[str]) -> None:
    """runs/ENV/DATE-TIME-seedSEED, where no other is given."""
    monkeypatch.chdir(tmp_path)
    path = new_run_directory(TrainConfig(env=env, seed=5))
    assert path.parent == Path("runs", *parts)
    assert re.fullmatch(r"\d{8}-\d{6}-seed5", path.name)
    assert path.is_dir()


def test_given_name(tmp_path: Path) -> None:
    """Made with its parents; an empty one is taken too."""
    for path in (tmp_path / "a" / "b", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        assert new_run_directory(TrainConfig(outdir=path)) == path
        assert path.is_dir()


def test_used_directory(tmp_path: Path) -> None:
    """Refused, with the two ways out; what it holds stays."""
    (tmp_path / "scores.txt").write_text("precious")
    with pytest.raises(ConfigError, match=f"{tmp_path} is not empty.*--resume {tmp_path}"):
        new_run_directory(TrainConfig(outdir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["scores.txt"]
    assert (tmp_path / "scores.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_directory_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    """Here a file is in the way; one line with the reason."""
    (tmp_path / "file").touch()
    path = tmp_path / name
    with pytest.raises(ConfigError, match=f"^--outdir {path} cannot be written: ") as raised:
        new_run_directory(TrainConfig(outdir=path))
    assert "\n" not in str(raised.value)


# config.yaml ------------------------------------------------------------------------------------


def test_config_repeats_the_run(tmp_path: Path) -> None:
    """What is read is what was written; a preset is named and resolved."""
    config = TrainConfig(preset="CartPole-v1", t_max=32, hidden_sizes=(5, 4), seed=0)
    write_config(tmp_path, config)
    assert TrainConfig().updated(read_config(tmp_path), "file") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_config_names_versions(tmp_path: Path) -> None:
    """Of Python, of the packages that matter, and of this package's own checkout."""
    write_config(tmp_path, TrainConfig())
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert content["python"] == platform.python_version()
    for package in ("a3c-tf", "tensorflow", "keras", "gymnasium", "numpy"):
        assert content["packages"][package] == metadata.version(package)
    assert content["git_commit"] is None or re.fullmatch("[0-9a-f]{40}", content["git_commit"])


def test_config_tells_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path and no environment variable, so that it can be passed on."""
    home = tmp_path / "home" / "someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SOME_TOKEN", "a-secret")
    write_config(home, TrainConfig(outdir=home, resume=home))
    text = (home / "config.yaml").read_text()
    for word in (str(home), str(Path.cwd()), "someone", "SOME_TOKEN", "a-secret", "outdir"):
        assert word not in text


def test_config_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package, or a machine without git, has no commit to name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    write_config(tmp_path, TrainConfig())
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["git_commit"] is None
