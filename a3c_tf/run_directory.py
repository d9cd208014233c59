"""A run's directory and its config.yaml: where a run is written, and how it is repeated."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from a3c_tf.config import TrainConfig, read_yaml
from a3c_tf.errors import ConfigError

PACKAGES = ("a3c-tf", "tensorflow", "keras", "gymnasium", "numpy", "tensorboard")


def new_run_directory(config: TrainConfig) -> Path:
    """Makes the directory for a new run.

    Raises:
        ConfigError: it holds something already, or cannot be written.
    """
    name = time.strftime("%Y%m%d-%H%M%S") + f"-seed{config.seed}"
    path = config.outdir or Path("runs", *config.env.replace(":", "-").split("/"), name)
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # Keras and TensorBoard could not write there
        raise ConfigError(f"--outdir is {str(path)!a}; take a name in UTF-8") from error
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(
                f"--outdir {path} is not empty; take a new one, or go on with --resume {path}"
            )
        (path / "config.yaml").touch()
    except OSError as error:
        raise ConfigError(f"--outdir {path} cannot be written: {error.strerror}") from error
    return path


def check_writable(directory: Path) -> None:
    """Sees to it that a run can be gone on with.

    Raises:
        ConfigError: nothing can be written there.
    """
    try:
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(f"--resume {directory} cannot be written: {error.strerror}") from error


def write_config(directory: Path, config: TrainConfig) -> None:
    """Writes `config.yaml`: settings, package versions and the project's git commit."""
    content = {
        "settings": config.to_dict(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git_commit": _git_commit(),
    }
    text = yaml.safe_dump(content, sort_keys=False)
    temporary = directory / "config.yaml.partial"
    temporary.write_text(text)
    temporary.replace(directory / "config.yaml")


def read_config(directory: Path) -> dict[str, Any]:
    """The settings of a run.

    Raises:
        ConfigError: the directory is no run's.
    """
    path = directory / "config.yaml"
    try:
        content = read_yaml(path.read_text())
        settings = dict(content["settings"])
    except OSError as error:
        raise ConfigError(f"{directory} is no run directory: {path.name} is missing") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: it holds no settings") from error
    return settings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of this package's own checkout, if it runs from one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
