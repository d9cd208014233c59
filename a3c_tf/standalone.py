"""Acts with an exported policy on recorded inputs: a program that runs without this package.

Its arguments are the format, the policy's path, a `.npz` of inputs, the path of a `.npz` for the
outputs, and JSON: the names of inputs and outputs, and the classes that the policy needs with their
modules. The state of a recurrent policy is the recorded one only at first, and then its own.
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Policy = Callable[[dict[str, Any]], dict[str, Any]]


def load_keras(path: str, classes: dict[str, str]) -> Policy:
    """A `.keras` file."""
    import keras

    known = {name: getattr(importlib.import_module(where), name) for name, where in classes.items()}
    model: Policy = keras.models.load_model(path, custom_objects=known)
    return model


def load_savedmodel(path: str, classes: dict[str, str]) -> Policy:
    """A SavedModel."""
    import tensorflow as tf

    function = tf.saved_model.load(path).signatures["serving_default"]
    return lambda inputs: function(**{name: tf.constant(a) for name, a in inputs.items()})


def load_tflite(path: str, classes: dict[str, str]) -> Policy:
    """A TensorFlow Lite model."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        import tensorflow as tf

        Interpreter = tf.lite.Interpreter  # noqa: N806

    interpreter = Interpreter(model_path=path)
    runner = interpreter.get_signature_runner()
    return lambda inputs: runner(**inputs)


def load_onnx(path: str, classes: dict[str, str]) -> Policy:
    """An ONNX model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def main(kind: str, path: str, recorded: str, results: str, names: str) -> None:
    """Acts on each of the recorded inputs."""
    named = json.loads(names)
    if not named["classes"]:
        sys.modules["a3c_tf"] = None  # type: ignore[assignment]  # importing it is an error now
    policy = globals()[f"load_{kind}"](path, named["classes"])
    with np.load(recorded) as file:
        arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
    outputs: list[dict[str, Any]] = []
    for now in zip(*arrays, strict=True):
        inputs = dict(zip(named["inputs"], now, strict=True))
        if outputs and "state" in inputs:
            inputs["state"] = outputs[-1]["next_state"]
        outputs.append({name: np.asarray(array) for name, array in policy(inputs).items()})
    np.savez(results, *(np.stack([one[name] for one in outputs]) for name in named["outputs"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
