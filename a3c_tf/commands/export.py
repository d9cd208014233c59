"""Exports the policy of a saved agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Literal

from a3c_tf.commands.output import FAILED, OK, usage
from a3c_tf.commands.saved import SavedAgent, load_fitting
from a3c_tf.envs.factory import spaces_of
from a3c_tf.errors import ConfigError, ExportError, at_the_end
from a3c_tf.flags import parse_flags

Kind = Literal["keras", "savedmodel", "tflite", "onnx"]

SUFFIXES = {"keras": ".keras", "savedmodel": "_savedmodel", "tflite": ".tflite", "onnx": ".onnx"}
# What converts and runs a format; where there is nothing, TensorFlow does.
PACKAGES = {"onnx": ("tf2onnx", "onnxruntime")}


@dataclass(frozen=True, kw_only=True)
class ExportConfig(SavedAgent):
    """Writes the policy of a saved agent in a format that is loaded without a3c_tf."""

    format: Kind
    """A Keras file, a SavedModel of TensorFlow, a TensorFlow Lite model or an ONNX model."""
    out: Path | None = None
    """What is written; there must be nothing there yet. By default RUN/policy.SUFFIX."""
    greedy: bool = False
    """The policy takes the most likely action; without it, one drawn with the input `noise`."""
    observations: int = 200
    """On how many observations the written policy is compared with the agent."""


def export(arguments: Sequence[str]) -> int:
    """`a3c-tf export`, `scripts/export.py`."""
    config = parse_flags(ExportConfig, arguments, "export")
    try:
        _check_packages(config.format)
        agent_directory, make_env = config.find()
        path = _path(config)
        spaces = spaces_of(make_env)
        if config.observations < 1:
            raise ConfigError(f"--observations is {config.observations}; it must be at least 1")
        from a3c_tf.envs.factory import make_vector_env
        from a3c_tf.export import (
            act_elsewhere,
            largest_difference,
            record,
            write_policy,
        )
        from a3c_tf.portable import classes_needed, portable_policy

        agent = load_fitting(agent_directory, make_env, spaces)
        policy = portable_policy(agent, config.greedy)
        with TemporaryDirectory(dir=path.parent, prefix=".export.") as directory:
            written = Path(directory, path.name)
            write_policy(policy, config.format, written)
            envs = make_vector_env(make_env, 0, 1, True, masked=agent.observations.masked)
            with at_the_end(envs.close):
                recording = record(agent, envs, config.observations, config.greedy)
            theirs = act_elsewhere(policy, config.format, written, recording.inputs)
            difference = largest_difference(recording.outputs, theirs)
            written.rename(path)
    except (ValueError, FileNotFoundError) as error:
        return usage(error)
    except ExportError as error:
        print(f"error: {error}; nothing has been written", file=sys.stderr)
        return FAILED
    print(f"{agent_directory}: written to {path}")
    print(f"inputs: {_described(policy.input)}")
    print(f"outputs: {_described(policy.output)}")
    needed = classes_needed(policy) if config.format == "keras" else {}
    if needed:
        named = ", ".join(f"{name} of {module}" for name, module in needed.items())
        print(f"classes that must be importable where it is loaded: {named}")
    print(
        f"compared with the agent: {config.observations} observations, same actions, largest "
        f"difference {difference:.2g}"
    )
    return OK


def _check_packages(kind: str) -> None:
    packages = PACKAGES.get(kind, ())
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--format {kind} needs {' and '.join(missing)}: pip install 'a3c_tf[export]'"
        )


def _path(config: ExportConfig) -> Path:
    suffix = SUFFIXES[config.format]
    path = (config.out or config.run / f"policy{suffix}").absolute()
    if config.format == "keras" and path.suffix != suffix:
        raise ConfigError(f"--out is {config.out}; the name of a Keras file ends in {suffix}")
    if path.exists():
        raise ConfigError(f"{path} exists already; remove it, or name another --out")
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _described(tensors: dict[str, Any]) -> str:
    """Names, dtypes and shapes; B is the number of observations."""
    return ", ".join(
        f"{name} {tensor.dtype} [{', '.join(str(n or 'B') for n in tensor.shape)}]"
        for name, tensor in tensors.items()
    )
