"""Exported policies: written in a format, and compared with the agent in that format's runtime."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from a3c_tf import standalone
from a3c_tf.actions import FORBIDDEN, only_allowed
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import Agent
from a3c_tf.errors import ConfigError, ExportError
from a3c_tf.graphs import Tensor
from a3c_tf.observations import is_choice
from a3c_tf.portable import NOISE, START, STATE, classes_needed, input_names, noise_size
from a3c_tf.quiet import keras, quiet_stderr, tf

Arrays = dict[str, npt.NDArray[Any]]

SEED = 54321  # of what is recorded: neither training nor evaluation has seen these episodes
TOLERANCE = 1e-4  # of an output's largest number, at least of 1
PATIENCE = 600.0  # seconds until a process that acts with an exported policy must have ended
LONG = 300  # characters of somebody else's error message


# Writing -----------------------------------------------------------------------------------------


def write_policy(policy: keras.Model, kind: str, path: Path) -> None:
    """Writes a policy.

    Args:
        policy: from `portable_policy`.
        kind: one of `WRITERS`.
        path: of the file, or of a SavedModel's directory; there is nothing there yet.

    Raises:
        ConfigError: the net holds something that the format has no words for.
    """
    failed: Exception | None = None
    with quiet_stderr():  # the converters write pages, also where all is well
        try:
            WRITERS[kind](policy, path)
        except Exception as error:  # each converter raises kinds of its own
            failed = error
    if failed is not None:
        raise ConfigError(f"this policy cannot be written as {kind}: {_reason(failed)}") from failed


def _reason(error: Exception) -> str:
    """In one line; the converter of TensorFlow Lite says what it means in the midst of pages."""
    named = re.search(r"error: (.+)", str(error))
    text = " ".join((named[1] if named else str(error)).split())
    return text if len(text) < LONG else f"{text[:LONG]} ..."


def _write_keras(policy: keras.Model, path: Path) -> None:
    policy.save(path)


def _write_savedmodel(policy: keras.Model, path: Path) -> None:
    function, module = _function_of(policy)
    tf.saved_model.save(module, str(path), signatures={"serving_default": function})


def _write_tflite(policy: keras.Model, path: Path) -> None:
    function, module = _function_of(policy)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    path.write_bytes(converter.convert())


def _write_onnx(policy: keras.Model, path: Path) -> None:
    import tf2onnx

    frozen = _frozen(policy)
    # Not `from_function`: it takes constants that TensorFlow passes as arguments for inputs.
    names = {
        tensor.name: name
        for tensors, named in ((frozen.inputs, policy.input), (frozen.outputs, policy.output))
        for tensor, name in zip(tensors, named, strict=True)
    }
    tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(),
        input_names=[tensor.name for tensor in frozen.inputs],
        output_names=[tensor.name for tensor in frozen.outputs],
        tensors_to_rename=names,
        output_path=str(path),
    )


WRITERS: Mapping[str, Callable[[keras.Model, Path], None]] = {
    "keras": _write_keras,
    "savedmodel": _write_savedmodel,
    "tflite": _write_tflite,
    "onnx": _write_onnx,
}


def _specs(policy: keras.Model) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(one.shape, one.dtype, name) for name, one in policy.input.items()]


def _frozen(policy: keras.Model) -> Any:
    """The policy as a graph of TensorFlow's whose weights are constants, with flat arguments."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    def act(*tensors: Tensor) -> list[Tensor]:
        outputs = policy(dict(zip(policy.input, tensors, strict=True)))
        return [outputs[name] for name in policy.output]

    traced = tf.function(act, autograph=False).get_concrete_function(*_specs(policy))
    return convert_variables_to_constants_v2(
        traced, lower_control_flow=False, aggressive_inlining=True
    )


def _function_of(policy: keras.Model) -> tuple[Any, tf.Module]:
    """The same with arguments and results by name, and what it belongs to."""
    frozen = _frozen(policy)

    def act(**inputs: Tensor) -> dict[str, Tensor]:
        outputs = frozen(*(inputs[name] for name in policy.input))
        return dict(zip(policy.output, outputs, strict=True))

    specs = dict(zip(policy.input, _specs(policy), strict=True))
    return tf.function(act, autograph=False).get_concrete_function(**specs), tf.Module()


# Comparing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """What an agent did in an environment.

    Attributes:
        inputs: of the exported policy, by name, [N, 1, ...].
        outputs: the agent's, [N, 1, ...]: actions, values, and what else it knows by itself.
    """

    inputs: Arrays
    outputs: Arrays


def record(agent: Agent, envs: VectorEnv, count: int, greedy: bool) -> Recording:
    """Lets the agent play some steps.

    Args:
        agent: as it was saved.
        envs: one environment, as `make_vector_env` makes it.
        count: how many observations.
        greedy: whether it takes the most likely actions.
    """
    rng = np.random.default_rng(SEED)
    names = input_names(agent)
    act = tf.function(_acting(agent, greedy), autograph=False)
    observations, _ = envs.reset(seed=SEED)
    state, start, ended = agent.first_state(1), True, False
    steps: list[tuple[Arrays, Arrays]] = []
    for _ in range(count):
        arrays = agent.observations.arrays(observations, 1)
        noise = _noise(agent, rng)
        inputs = {
            name: array + np.asarray(part.start, np.int64) if is_choice(part) else array
            for name, array, part in zip(names, arrays, agent.observations.parts, strict=True)
        }
        inputs[STATE], inputs[START] = state.numpy(), np.array([start], np.float32)
        inputs[NOISE] = noise
        outputs = act(
            tf.constant(noise), state, tf.constant(inputs[START]), *map(tf.constant, arrays)
        )
        steps.append((inputs, {name: tensor.numpy() for name, tensor in outputs.items()}))
        state = outputs.get("next_state", state)
        observations, _, terminated, truncated, _ = envs.step(steps[-1][1]["action"])
        # The step after an end takes no action: it returns the next episode's first observation.
        start, ended = ended, bool(terminated[0] or truncated[0])
    inputs, outputs = (
        {name: np.stack([step[which][name] for step in steps]) for name in steps[0][which]}
        for which in (0, 1)
    )
    return Recording(inputs, outputs)


def _acting(agent: Agent, greedy: bool) -> Callable[..., dict[str, Tensor]]:
    """What the agent itself does and knows, as a function of the noise that it draws with."""

    def act(noise: Tensor, state: Tensor, start: Tensor, *parts: Tensor) -> dict[str, Tensor]:
        distribution, after = agent.distribution(parts, state, start, 0.0)
        drawn = distribution.mode() if greedy else distribution.sample(noise)
        outputs = {"action": agent.actions.to_environment(drawn)}
        seen, mask = agent.observations.inputs(parts), agent.observations.mask(parts)
        if not isinstance(agent, A3CAgent):
            return {**outputs, "action_values": only_allowed(agent.nets["model"](seen), mask)}
        raw, value = agent.model([seen, state, start] if agent.state_size else seen)[:2]
        outputs["value"] = value
        if not isinstance(agent.action_space, gym.spaces.Box):
            outputs["logits"] = only_allowed(raw, mask)
        if agent.state_size:
            outputs["next_state"] = after
        return outputs

    return act


def _noise(agent: Agent, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    shape = (1, noise_size(agent))
    if isinstance(agent.action_space, gym.spaces.Box):
        return rng.standard_normal(shape, np.float32)
    bits = isinstance(agent.action_space, gym.spaces.MultiBinary)
    return (rng.logistic if bits else rng.gumbel)(size=shape).astype(np.float32)


def act_elsewhere(policy: keras.Model, kind: str, path: Path, inputs: Arrays) -> Arrays:
    """What an exported policy does, in a process of its own that cannot import this package.

    Only a Keras file with classes that Keras does not have gets these imported.

    Args:
        policy: what was exported.
        kind: its format.
        path: where it is.
        inputs: [N, ...] each; the state of a recurrent policy only for the first step.

    Raises:
        ExportError: it cannot be loaded, or cannot act.
    """
    names = {
        "inputs": list(policy.input),
        "outputs": list(policy.output),
        "classes": classes_needed(policy) if kind == "keras" else {},
    }
    with TemporaryDirectory() as directory:
        recorded, results = Path(directory, "inputs.npz"), Path(directory, "outputs.npz")
        np.savez(recorded, *(inputs[name] for name in policy.input))
        source = Path(standalone.__file__).read_text()
        arguments = [kind, str(path), str(recorded), str(results), json.dumps(names)]
        command = [sys.executable, "-c", source, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise ExportError(f"the {kind} policy has not acted in {PATIENCE:g} s") from error
        if done.returncode != 0:
            reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ExportError(f"the {kind} policy cannot act by itself: {reason[:LONG]}")
        with np.load(results) as arrays:
            return {name: arrays[f"arr_{i}"] for i, name in enumerate(policy.output)}


def largest_difference(ours: Arrays, theirs: Arrays) -> float:
    """How far the outputs of an exported policy are from the agent's.

    Args:
        ours: the agent's outputs, [N, ...] each.
        theirs: those of the exported policy, and perhaps more of them.

    Raises:
        ExportError: an action is another one, or an output is further away than rounding explains.
    """
    largest = 0.0
    for name, wanted in ours.items():
        wanted, got = wanted.astype(np.float64), theirs[name].astype(np.float64)
        if wanted.shape != got.shape:
            raise ExportError(f"{name} has the shape {got.shape[1:]}, not {wanted.shape[1:]}")
        exact = name == "action" and theirs[name].dtype.kind != "f"
        size = np.abs(wanted[wanted != FORBIDDEN]).max(initial=1.0)
        differences = np.abs(wanted - got).reshape(len(wanted), -1).max(axis=1)
        # Written so that what is not a number counts as different.
        wrong = np.count_nonzero(~(differences <= (0.0 if exact else TOLERANCE * size)))
        if wrong:
            raise ExportError(
                f"{name} is not the agent's on {wrong} of {len(wanted)} observations, by up to "
                f"{differences.max():.2g}"
            )
        largest = max(largest, float(differences.max()))
    return largest
