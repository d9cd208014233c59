"""Settings from flags, files, presets and earlier runs, and where each of them came from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c_tf.config import TrainConfig, load_preset, preset_names, read_yaml
from a3c_tf.envs.factory import is_atari_id
from a3c_tf.errors import ConfigError
from a3c_tf.flags import parse_flags
from a3c_tf.run_directory import read_config

DEFAULTS, FLAGS, CONFIG = "defaults", "flags", "config "


def parse_settings(arguments: Sequence[str]) -> tuple[TrainConfig, dict[str, str]]:
    """Defaults, then the preset, then the config file, then the flags.

    The settings of a resumed run, or of a run's own config file, take the place of all before them.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The settings, checked, and the origin of each one by its name.

    Raises:
        ConfigError: a preset, file, run or value that cannot be used.
        SystemExit: --help, or a flag that does not exist (code 2).
    """
    base, origins = TrainConfig(), dict.fromkeys(TrainConfig().to_dict(), DEFAULTS)
    for origin, settings in _layers(arguments).items():
        base = base.updated(settings, origin)
        origins |= dict.fromkeys(settings, origin)
    config = parse_flags(TrainConfig, arguments, "train", base)
    config.validate()
    before, after = base.to_dict(), config.to_dict()
    return config, origins | {name: FLAGS for name in after if after[name] != before[name]}


def describe_settings(config: TrainConfig, origins: dict[str, str]) -> list[str]:
    """A line for each origin, with the settings that came from there."""
    lines: dict[str, list[str]] = {origin: [] for origin in dict.fromkeys(origins.values())}
    for name, value in config.to_dict().items():
        lines[origins[name]].append(f"{name}={value}")

    def rank(origin: str) -> tuple[bool, bool, bool]:
        return origin == DEFAULTS, origin == FLAGS, origin.startswith(CONFIG)

    return [f"{origin}: {' '.join(lines[origin])}" for origin in sorted(lines, key=rank)]


def _preset_for(env: str) -> str | None:
    if env in preset_names():
        return env
    return "Atari" if is_atari_id(env) else None


def _layers(arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the flags go over: settings by where they come from, the later ones going first."""
    # The flags that decide about the others' defaults have to be known before them.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--env", "--preset", "--resume", "--config", "--outdir"):
        first.add_argument(flag, nargs="?")
    known, _ = first.parse_known_args(arguments)
    resume, file = (None if path == "None" else path for path in (known.resume, known.config))
    if resume:
        if known.preset:
            raise ConfigError("--resume takes the run's own settings; leave --preset out")
        if file:
            raise ConfigError("--resume takes the run's own settings; leave --config out")
        if known.outdir:
            raise ConfigError("--resume goes on in the run's own directory; leave --outdir out")
        settings = read_config(Path(resume))
        if known.env and known.env != settings.get("env"):
            raise ConfigError(f"--resume: the run's env is {settings.get('env')}, not {known.env}")
        return {f"run {resume}": settings}
    layers, start, preset = {}, TrainConfig(), known.preset
    if file:
        if preset:
            raise ConfigError(
                "--config: the file itself says preset: NAME, or gets that of its env; "
                "leave --preset out"
            )
        settings, is_run = _read_file(Path(file))
        layers[CONFIG + file] = settings
        if is_run:
            return layers
        start = start.updated(settings, CONFIG + file)
        preset = str(start.preset) if "preset" in settings else None
    preset = preset or _preset_for(known.env or start.env)
    if preset is None or preset == "None":
        return layers
    return {f"preset {preset}": load_preset(preset) | {"preset": preset}} | layers


def _read_file(path: Path) -> tuple[dict[str, Any], bool]:
    """The settings in a YAML file, and whether it is the config.yaml of a run, which has all."""
    try:
        content = read_yaml(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--config {path} cannot be read as YAML: {error}") from error
    is_run = isinstance(content, dict) and "settings" in content
    settings = content["settings"] if is_run else content
    if not isinstance(settings, dict):
        raise ConfigError(f"--config {path} holds no settings; write lines such as steps: 100000")
    return settings, is_run
