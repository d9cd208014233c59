"""The default nets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf.networks import build_action_value, build_actor_critic
from a3c_tf.quiet import keras, tf

ACTIONS = gym.spaces.Discrete(3, start=1)


def box(shape: tuple[int, ...], dtype: Any = np.float32) -> gym.spaces.Box:
    """A Box that holds a byte's range."""
    return gym.spaces.Box(0, 255, shape, dtype)


def build(space: gym.Space | None = None, **options: Any) -> keras.Model:
    """Nets with one hidden layer of 8 units."""
    return build_actor_critic(space or box((4,)), ACTIONS, hidden_sizes=(8,), **options)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (5, 4, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    """A Box of any shape gives [B, actions] and [B], float32."""
    logits, values = build(box(shape))(np.ones((7, *shape), np.float32))
    assert (logits.shape, logits.dtype) == ((7, 3), tf.float32)
    assert (values.shape, values.dtype) == ((7,), tf.float32)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(np.uint8, 255.0), (np.float32, 1.0), (np.float64, 1.0), (np.int64, 1.0)]
)
def test_only_bytes_are_scaled(dtype: Any, scale: float) -> None:
    """Images are scaled to 0 .. 1, once; other numbers reach the nets as they are."""
    observations = np.array([[0, 1, 51, 255]])
    plain = build(box((4,)))(observations.astype(np.float32) / scale)
    actual = build(box((4,), dtype))(observations.astype(dtype))
    for ours, theirs in zip(actual, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(("shared_trunk", "hidden_layers"), [(False, 2), (True, 1)])
def test_trunks(shared_trunk: bool, hidden_layers: int) -> None:
    """Each head has its own trunk, or both have one; gradients of a head stay in its trunk."""
    model = build(shared_trunk=shared_trunk)
    assert len(model.trainable_variables) == 2 * (hidden_layers + 2)
    with tf.GradientTape() as tape:
        _, values = model(np.ones((1, 4), np.float32))
    gradients = tape.gradient(values, model.trainable_variables)
    assert sum(gradient is not None for gradient in gradients) == 4


def test_weights_are_a_function_of_the_seed() -> None:
    """The same for the same seed, another for another one; 0 is a seed; no two layers alike."""
    first, again, other = (build(seed=seed).get_weights() for seed in (0, 0, 1))
    for array in range(len(first)):
        np.testing.assert_array_equal(first[array], again[array])
        assert first[array].ndim == 1 or (first[array] != other[array]).all()
    kernels = [array for array in first if array.shape == (4, 8)]
    assert (kernels[0] != kernels[1]).all()


def test_orthogonal_weights() -> None:
    """Gain sqrt(2) in hidden layers, 0.01 for the policy's output, 1 for the value's."""
    model = build(box((8,)))
    for name, gain in [
        ("policy_0", np.sqrt(2)), ("value_0", np.sqrt(2)), ("policy_output", 0.01),
        ("value_output", 1.0),
    ]:  # fmt: skip
        kernel, bias = model.get_layer(name).get_weights()
        np.testing.assert_allclose(kernel.T @ kernel, gain**2 * np.eye(kernel.shape[1]), atol=1e-5)
        assert not bias.any()


def test_glorot_weights() -> None:
    """Keras's default: uniform up to sqrt(6 / (inputs + outputs))."""
    kernel, _ = build(box((8,)), initializer="glorot_uniform").get_layer("policy_0").get_weights()
    limit = np.sqrt(6 / 16)
    assert 0.8 * limit < np.abs(kernel).max() <= limit


def test_activation() -> None:
    """Of the hidden layers, not of the heads."""
    model = build(activation="relu")
    assert model.get_layer("policy_0").activation is keras.activations.relu
    assert model.get_layer("policy_output").activation is keras.activations.linear


def test_action_values() -> None:
    """One output for each action, on hidden layers like those of the actor-critic."""
    model = build_action_value(box((4,), np.uint8), ACTIONS, hidden_sizes=(8, 6), seed=3)
    values = model(np.ones((7, 4), np.uint8))
    assert (values.shape, values.dtype) == ((7, 3), tf.float32)
    shapes = [tuple(weights.shape) for weights in model.trainable_variables]
    assert shapes == [(4, 8), (8,), (8, 6), (6,), (6, 3), (3,)]
    other = build_action_value(box((4,), np.uint8), ACTIONS, hidden_sizes=(8, 6), seed=4)
    assert (model.get_weights()[0] != other.get_weights()[0]).all()


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_paper_cnn(shared_trunk: bool) -> None:
    """The layers of the paper's net on its 84 x 84 x 4 frames, as bytes, one trunk or two."""
    space = box((84, 84, 4), np.uint8)
    model = build_actor_critic(space, ACTIONS, network="paper_cnn", shared_trunk=shared_trunk)
    logits, values = model(np.ones((2, 84, 84, 4), np.uint8))
    assert (logits.shape, values.shape) == ((2, 3), (2,))
    trunk = [(8, 8, 4, 16), (16,), (4, 4, 16, 32), (32,), (9 * 9 * 32, 256), (256,)]
    heads = [(256, 1), (1,), (256, 3), (3,)]
    shapes = [tuple(weights.shape) for weights in model.trainable_variables]
    assert sorted(shapes) == sorted(trunk * (1 if shared_trunk else 2) + heads)
    kinds = {layer.activation for layer in model.layers if hasattr(layer, "kernel")}
    assert kinds == {keras.activations.relu, keras.activations.linear}


def test_paper_cnn_needs_images() -> None:
    """The message names the network and the shape."""
    with pytest.raises(ValueError, match=r"paper_cnn needs images .* \(4,\)"):
        build(network="paper_cnn")


BOX_ACTIONS = gym.spaces.Box(-1.0, 1.0, (3,))


@pytest.mark.parametrize("state_dependent_std", [False, True])
def test_outputs_for_box_actions(state_dependent_std: bool) -> None:
    """A mean for each number, and a spread that depends on the observation or does not."""
    model = build_actor_critic(
        box((4,)), BOX_ACTIONS, (8,), state_dependent_std=state_dependent_std, seed=1
    )
    observations = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    outputs = model(observations)[0].numpy()
    assert outputs.shape == (2, 6)
    assert (outputs[0, :3] != outputs[1, :3]).all()
    assert (outputs[0, 3:] != outputs[1, 3:]).all() == state_dependent_std
    if not state_dependent_std:
        model.get_layer("policy_std").set_weights([np.array([1.0, 2.0, 3.0], np.float32)])
        np.testing.assert_array_equal(model(observations)[0][:, 3:], [[1, 2, 3]] * 2)


def test_box_actions_come_back_from_a_file(tmp_path: Path) -> None:
    """The spread is a layer of this package's, which Keras finds again in its safe mode."""
    model = build_actor_critic(box((4,)), BOX_ACTIONS)
    model.get_layer("policy_std").set_weights([np.array([1.0, 2.0, 3.0], np.float32)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(
        model(np.ones((2, 4), np.float32))[0], loaded(np.ones((2, 4), np.float32))[0]
    )


@pytest.mark.parametrize(
    ("observations", "actions", "named"),
    [(gym.spaces.Text(3), ACTIONS, "Text"), (box((4,)), gym.spaces.Text(4), "Text")],
    ids=["observations", "actions"],
)
def test_unsupported_space(observations: gym.Space, actions: gym.Space, named: str) -> None:
    """The message names the space."""
    with pytest.raises(ValueError, match=named):
        build_actor_critic(observations, actions)


HEADS = 256 * 3 + 3, 256 + 1


@pytest.mark.parametrize(
    ("network", "convolutions", "dense", "heads"),
    [
        ("nature_cnn", [8224, 32832, 36928], 3136 * 512 + 512, (512 * 3 + 3, 512 + 1)),
        (
            "impala",
            [592, *4 * [2320], 4640, *4 * [9248], *5 * [9248]],
            11 * 11 * 32 * 256 + 256,
            HEADS,
        ),
        ("paper_cnn", [4112, 8224], 9 * 9 * 32 * 256 + 256, HEADS),
    ],
)
def test_weights_of_networks_for_images(
    network: Any, convolutions: list[int], dense: int, heads: tuple[int, int]
) -> None:
    """As many as the papers' layers have, with four frames of 84 x 84."""
    space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    model = build_actor_critic(space, ACTIONS, network=network, shared_trunk=True)
    counts = [layer.count_params() for layer in model.layers if layer.count_params()]
    assert counts[: len(convolutions)] == convolutions
    assert counts[len(convolutions)] == dense
    assert sorted(counts[-2:]) == sorted(heads)
    assert len(counts) == len(convolutions) + 3
    assert len(model.trainable_variables) == 2 * len(counts)


@pytest.mark.parametrize("normalize", [False, True])
def test_channels_first(normalize: bool) -> None:
    """Frames one after the other give what the same frames as channels give."""
    images = np.random.default_rng(0).integers(256, size=(2, 40, 40, 3), dtype=np.uint8)
    last = build(box((40, 40, 3), np.uint8), network="paper_cnn", normalize=normalize)
    first = build(box((3, 40, 40), np.uint8), network="paper_cnn", normalize=normalize)
    for ours, theirs in zip(first(np.moveaxis(images, 3, 1)), last(images), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_images_beside_numbers() -> None:
    """Both reach the dense layer."""
    space = gym.spaces.Dict(
        frame=box((40, 40, 3), np.uint8), speed=box((2,)), gear=gym.spaces.Discrete(5)
    )
    model = build(space, network="paper_cnn", shared_trunk=True)
    (dense,) = [layer for layer in model.layers if layer.name == "shared_dense"]
    assert dense.kernel.shape[0] == 3 * 3 * 32 + 5 + 2


def test_whole_numbers_are_one_hot() -> None:
    """What the first dense layer gets, part after part, in the order of a Dict's names."""
    space = gym.spaces.Dict(
        a=gym.spaces.Discrete(3),
        b=gym.spaces.MultiDiscrete([2, 3]),
        c=box((2,)),
        d=gym.spaces.MultiBinary(2),
    )
    model = build_actor_critic(space, gym.spaces.Discrete(2), (4,), shared_trunk=True)
    (dense,) = [layer for layer in model.layers if layer.name == "shared_0"]
    joined = keras.Model(model.inputs, dense.input)
    seen = {
        "a": np.array([1]),
        "b": np.array([[1, 2]]),
        "c": np.array([[0.5, -3.0]], np.float32),
        "d": np.array([[0.0, 1.0]], np.float32),
    }
    (row,) = joined([seen[name] for name in "abcd"]).numpy().tolist()
    one_hot = [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]  # b: as many places as its largest
    assert row == [*one_hot[0], *one_hot[1], *one_hot[2], 0.5, -3.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("network", "shape"), [("paper_cnn", (7, 84, 3)), ("nature_cnn", (30, 30, 1))]
)
def test_small_images(network: Any, shape: tuple[int, ...]) -> None:
    """One line that names net and size."""
    with pytest.raises(ValueError, match=f"{network} needs larger images than") as raised:
        build(box(shape, np.uint8), network=network)
    assert "\n" not in str(raised.value)
    build(box(shape, np.uint8), network="impala")
