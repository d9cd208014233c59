"""Settings from flags, presets and earlier runs, and where each of them came from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import tyro

from a3c_tf.config import TrainConfig, load_preset, preset_names
from a3c_tf.envs.factory import is_atari_id
from a3c_tf.errors import ConfigError
from a3c_tf.run_directory import read_config

DEFAULTS, FLAGS = "defaults", "flags"


def parse_settings(arguments: Sequence[str]) -> tuple[TrainConfig, dict[str, str]]:
    """Defaults, then the preset or the resumed run, then the flags.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The settings, checked, and the origin of each one by its name.

    Raises:
        ConfigError: a preset, run or value that cannot be used.
        SystemExit: --help, or a flag that does not exist (code 2).
    """
    base, base_origin, changed = _base(arguments)
    config = tyro.cli(TrainConfig, args=list(arguments), default=base, prog="a3c-tf train")
    config.validate()
    origins = dict.fromkeys(base.to_dict(), DEFAULTS) | dict.fromkeys(changed, base_origin)
    before, after = base.to_dict(), config.to_dict()
    return config, origins | {name: FLAGS for name in after if after[name] != before[name]}


def describe_settings(config: TrainConfig, origins: dict[str, str]) -> list[str]:
    """A line for each origin, with the settings that came from there."""
    lines: dict[str, list[str]] = {origin: [] for origin in dict.fromkeys(origins.values())}
    for name, value in config.to_dict().items():
        lines[origins[name]].append(f"{name}={value}")
    ordered = sorted(lines, key=lambda origin: (origin == DEFAULTS, origin == FLAGS))
    return [f"{origin}: {' '.join(lines[origin])}" for origin in ordered]


def _preset_for(env: str) -> str | None:
    if env in preset_names():
        return env
    return "Atari" if is_atari_id(env) else None


def _base(arguments: Sequence[str]) -> tuple[TrainConfig, str, set[str]]:
    """What the flags start from: its settings, its name, and which settings it has set."""
    # The flags that decide about the others' defaults have to be known before them.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--env", "--preset", "--resume", "--outdir"):
        first.add_argument(flag, nargs="?")
    known, _ = first.parse_known_args(arguments)
    base = TrainConfig()
    if known.resume and known.resume != "None":
        if known.preset:
            raise ConfigError("--resume takes the run's own settings; leave --preset out")
        if known.outdir:
            raise ConfigError("--resume goes on in the run's own directory; leave --outdir out")
        settings, origin = read_config(Path(known.resume)), f"run {known.resume}"
        if known.env and known.env != settings.get("env"):
            raise ConfigError(f"--resume: the run's env is {settings.get('env')}, not {known.env}")
    else:
        env = known.env or base.env
        name = known.preset or _preset_for(env)
        if name is None or name == "None":
            return base, DEFAULTS, set()
        settings, origin = load_preset(name) | {"preset": name}, f"preset {name}"
    return base.updated(settings, origin), origin, set(settings)
