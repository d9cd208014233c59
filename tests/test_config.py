"""Settings: their checks, their plain form, the presets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from a3c_tf.build import build_agent
from a3c_tf.config import TrainConfig, load_preset, preset_names
from a3c_tf.envs.factory import RegisteredEnv, spaces_of
from a3c_tf.errors import ConfigError

# Checks -----------------------------------------------------------------------------------------


def test_defaults_are_valid() -> None:
    """Nothing has to be set."""
    TrainConfig().validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("envs_per_worker", 0),
        ("t_max", 0),
        ("steps", 0),
        ("steps", -5),
        ("eval_episodes", 0),
        ("seed", -1),
        ("entropy", -0.01),
        ("value_coefficient", -0.5),
        ("max_gradient_norm", -1.0),
        ("eval_interval", -1),
        ("eval_seconds", -1.0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("optimizer_epsilon", 0.0),
        ("checkpoint_seconds", 0.0),
        ("gamma", -0.1),
        ("gamma", 1.1),
        ("gamma", math.nan),
        ("gae_lambda", 1.1),
        ("hidden_sizes", (64, 0)),
    ],
)
def test_value_that_cannot_be(name: str, value: Any) -> None:
    """One line that names the flag, the value and what it may be."""
    with pytest.raises(ConfigError) as raised:
        replace(TrainConfig(), **{name: value}).validate()
    message = str(raised.value)
    assert message.startswith(f"--{name.replace('_', '-')} is {value}; it must be ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 1),
        ("envs_per_worker", 1),
        ("t_max", 1),
        ("seed", 0),
        ("entropy", 0.0),
        ("max_gradient_norm", 0.0),
        ("eval_interval", 0),
        ("gamma", 0.0),
        ("gamma", 1.0),
        ("gae_lambda", 0.0),
        ("hidden_sizes", ()),
        ("successful_score", -100.0),
    ],
)
def test_value_at_the_edge(name: str, value: Any) -> None:
    """The last one that can be used."""
    replace(TrainConfig(), **{name: value}).validate()


# Plain form -------------------------------------------------------------------------------------


def test_plain_form_is_all_of_it() -> None:
    """YAML and back gives the same settings; paths belong to one machine and stay behind."""
    config = TrainConfig(
        env="X-v0",
        preset="CartPole-v1",
        outdir=Path("a"),
        resume=Path("b"),
        hidden_sizes=(3, 2, 1),
        learning_rate=1e-5,
        optimizer_epsilon=1e-10,
        successful_score=7.0,
        steps=10**10,
    )
    text = yaml.safe_dump(config.to_dict())
    assert TrainConfig().updated(yaml.safe_load(text), "file") == replace(
        config, outdir=None, resume=None
    )


def test_unknown_setting() -> None:
    """Where it was found, what it is called, and what may be meant."""
    with pytest.raises(ConfigError, match=r"^file: unknown setting 'worker' \(near: workers"):
        TrainConfig().updated({"worker": 2}, "file")


# Presets ----------------------------------------------------------------------------------------


def test_unknown_preset() -> None:
    """The message names those that there are."""
    with pytest.raises(ConfigError, match=r"^unknown preset 'CartPole'; there are: .*CartPole-v1"):
        load_preset("CartPole")


def test_there_are_presets() -> None:
    """They come with the package."""
    assert "CartPole-v1" in preset_names()


@pytest.mark.parametrize("name", preset_names())
def test_preset(name: str) -> None:
    """Only known settings, each of the right type, that make an agent for the environment."""
    settings = load_preset(name)
    config = TrainConfig().updated(settings, name)
    config.validate()
    for key, default in TrainConfig().to_dict().items():
        value = config.to_dict()[key]
        if isinstance(default, float):
            assert isinstance(value, (int, float)), key  # YAML reads 1e-5 as a string
        elif default is not None:
            assert type(value) is type(default), key
    build_agent(config, *spaces_of(RegisteredEnv(config.env)))
