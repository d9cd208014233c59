"""Saved agents come back."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import DESCRIPTION, FORMAT, Agent
from a3c_tf.agents.n_step_q import NStepQAgent
from a3c_tf.envs.spaces import space_from_json
from a3c_tf.layers import EpisodicLSTM, FreeOutputs
from a3c_tf.normalization import RunningNormalization
from a3c_tf.quiet import keras
from a3c_tf.schedules import Schedule

BUILT_IN = (
    A3CAgent,
    NStepQAgent,
    EpisodicLSTM,
    FreeOutputs,
    RunningNormalization,
)  # imported, and by that known

LONG = 300  # characters of somebody else's error message


def load_agent(
    directory: str | Path, seed: int = 0, custom_objects: dict[str, Any] | None = None
) -> Any:
    """Loads an agent that `Agent.save` wrote; it acts at once.

    Nothing in the files is executed: the nets are loaded in Keras's safe mode.

    Args:
        directory: a run's `best`, `successful`, `<steps>_finish`, `<steps>_except`, or any of
            its checkpoints.
        seed: of the actions that the agent draws.
        custom_objects: the classes of the user's own layers and models by their names, where they
            are not registered with Keras.

    Returns:
        An `Agent` of the class that was saved.

    Raises:
        FileNotFoundError: the directory holds no agent.
        ValueError: the files are damaged or of another format, or the agent is of a class that
            has not been imported.
    """
    directory = Path(directory)
    path = directory / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(f"no agent in {directory}: {path.name} is missing")
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise ValueError(f"format {description['format']}, expected {FORMAT}")
        kind = Agent.kinds.get(description["kind"])
        if kind is None:
            raise ValueError(f"import the module of its class {description['kind']!r} first")
        optimizer = keras.saving.deserialize_keras_object(description["optimizer"], safe_mode=True)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ValueError(f"optimizer {description['optimizer']!r}")
        nets = {
            name: keras.saving.load_model(
                directory / f"{Path(name).name}.keras",
                custom_objects=custom_objects,
                compile=False,
                safe_mode=True,
            )
            for name in description["nets"]
        }
        return kind(
            **nets,
            observation_space=space_from_json(description["observation_space"]),
            action_space=space_from_json(description["action_space"]),
            optimizer=optimizer,
            hyperparameters=_hyperparameters(kind, description["hyperparameters"]),
            seed=seed,
        )
    except Exception as error:  # Keras raises all kinds, zipfile and h5py their own
        raise ValueError(f"the agent in {directory} cannot be loaded: {_reason(error)}") from error


def _hyperparameters(kind: type[Agent], saved: dict[str, Any]) -> Any:
    """Schedules were saved as dicts, and tuples as lists."""
    known = {field.name for field in fields(kind.hyperparameters_type)}
    if saved.keys() != known:
        raise ValueError(f"hyperparameters {list(saved)}, expected {sorted(known)}")

    def restored(value: Any) -> Any:
        if isinstance(value, dict):
            return Schedule(**value)
        return tuple(value) if isinstance(value, list) else value

    return kind.hyperparameters_type(**{name: restored(v) for name, v in saved.items()})


def _reason(error: Exception) -> str:
    """Keras's explanations go over many lines."""
    text = " ".join(str(error).split())
    unknown = re.search(r"Could not locate class '(\w+)'", text)
    if unknown is None:
        return text if len(text) < LONG else f"{text[:LONG]} ..."
    name = unknown[1]
    return (
        f"its class {name} is not known: import the module that registers it with "
        f"keras.saving.register_keras_serializable, or give custom_objects={{{name!r}: {name}}}"
    )
