"""Defaults, presets, earlier runs and flags: which one wins, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from a3c_tf.config import TrainConfig, load_preset
from a3c_tf.errors import ConfigError
from a3c_tf.run_directory import write_config
from a3c_tf.settings import describe_settings, parse_settings

PRESET = load_preset("CartPole-v1")
OTHER = "MountainCar-v0"  # an id without a preset


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with settings of its own."""
    config = TrainConfig(
        env="CartPole-v1",
        preset="CartPole-v1",
        seed=7,
        workers=3,
        t_max=11,
        hidden_sizes=(5,),
        successful_score=9.0,
    )
    write_config(tmp_path, config)
    return tmp_path


# Precedence -----------------------------------------------------------------------------------


def test_defaults() -> None:
    """Where nothing else speaks."""
    config, origins = parse_settings(["--env", OTHER])
    assert config == TrainConfig(env=OTHER)
    assert origins.pop("env") == "flags"
    assert set(origins.values()) == {"defaults"}


def test_preset_goes_before_defaults() -> None:
    """Each of its settings is taken, and those alone."""
    config, origins = parse_settings(["--preset", "CartPole-v1"])
    settings = config.to_dict()
    assert PRESET.items() <= settings.items()
    assert {name for name, origin in origins.items() if origin == "preset CartPole-v1"} == {
        *PRESET,
        "preset",
    }
    defaults = TrainConfig().to_dict()
    assert all(settings[name] == defaults[name] for name in defaults.keys() - {*PRESET, "preset"})


def test_flags_go_before_the_preset() -> None:
    """Also where a flag sets what the default is."""
    default = TrainConfig().t_max
    assert default != PRESET["t_max"]
    config, origins = parse_settings(["--t-max", str(default), "--steps", "999"])
    assert (config.t_max, config.steps) == (default, 999)
    assert origins["t_max"] == origins["steps"] == "flags"
    assert origins["envs_per_worker"] == "preset CartPole-v1"


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        ([], "CartPole-v1"),
        (["--env", "CartPole-v1"], "CartPole-v1"),
        (["--env=CartPole-v1"], "CartPole-v1"),
        (["--env", OTHER], None),
        (["--preset", "None"], None),
        (["--env", OTHER, "--preset", "CartPole-v1"], "CartPole-v1"),
        (["--preset=CartPole-v1", "--env", OTHER], "CartPole-v1"),
    ],
)
def test_which_preset(arguments: list[str], preset: str | None) -> None:
    """That of the environment's name, unless another one, or none, is asked for."""
    config, _ = parse_settings(arguments)
    assert config.preset == preset
    assert config.env == (OTHER if OTHER in arguments else "CartPole-v1")
    assert config.t_max == (PRESET["t_max"] if preset else TrainConfig().t_max)


@pytest.mark.parametrize("env", ["ALE/Breakout-v5", "Breakout-v4", "BreakoutNoFrameskip-v4"])
def test_preset_of_all_atari_games(env: str) -> None:
    """It serves every one of them, whatever the id's version; flags go before it."""
    preset = load_preset("Atari")
    config, origins = parse_settings(["--env", env, "--t-max", "20"])
    assert (config.env, config.preset, config.t_max) == (env, "Atari", 20)
    assert (config.network, config.steps) == (preset["network"], preset["steps"])
    assert (origins["network"], origins["env"]) == ("preset Atari", "flags")
    config, _ = parse_settings(["--env", env, "--preset", "None"])
    assert config == TrainConfig(env=env)


def test_resumed_run_goes_before_defaults(run: Path) -> None:
    """Its settings are taken, not those of the preset of today."""
    config, origins = parse_settings(["--resume", str(run)])
    assert config.resume == run
    assert (config.seed, config.workers, config.t_max) == (7, 3, 11)
    assert (config.hidden_sizes, config.successful_score) == ((5,), 9.0)
    assert config.envs_per_worker == TrainConfig().envs_per_worker
    assert set(origins.values()) == {f"run {run}"}


def test_flags_go_before_a_resumed_run(run: Path) -> None:
    """More steps, say; the rest stays."""
    config, origins = parse_settings(["--resume", str(run), "--steps", "999", "--t-max", "5"])
    assert (config.steps, config.t_max, config.seed) == (999, 5, 7)
    assert {name for name, origin in origins.items() if origin == "flags"} == {"steps", "t_max"}


def test_kinds_of_values() -> None:
    """Lists, booleans, choices and paths."""
    flags = ["--hidden-sizes", "3", "2", "--shared-trunk", "--optimizer", "adam"]
    numbers = ["--successful-score", "-1.5", "--learning-rate", "1e-3"]
    config, _ = parse_settings(["--env", OTHER, *flags, *numbers, "--outdir", "a/b"])
    assert (config.hidden_sizes, config.shared_trunk, config.optimizer) == ((3, 2), True, "adam")
    assert (config.outdir, config.successful_score) == (Path("a/b"), -1.5)
    assert config.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ([], {}),
        (["--env-args"], {}),
        (["--env-args", "is_slippery=False"], {"is_slippery": False}),
        (["--env-args", "map_name=8x8", "sizes=[1, 2]"], {"map_name": "8x8", "sizes": [1, 2]}),
        (["--env-args", "goal=a=b", "none=null"], {"goal": "a=b", "none": None}),
    ],
)
def test_arguments_of_the_environment(flags: list[str], arguments: dict[str, Any]) -> None:
    """NAME=VALUE, with values as in YAML; the settings that follow are not among them."""
    config, origins = parse_settings(["--env", OTHER, *flags, "--steps", "7"])
    assert (config.env_args, config.steps) == (arguments, 7)
    assert origins["env_args"] == ("flags" if arguments else "defaults")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("is_slippery", "'is_slippery' is not NAME=VALUE"),
        ("=3", "'=3' is not NAME=VALUE"),
        ("a=[1", "'a=[1' has no value that YAML can read"),
    ],
)
def test_arguments_without_a_name_or_value(
    argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is expected is said."""
    with pytest.raises(SystemExit):
        parse_settings(["--env-args", argument])
    assert words in capsys.readouterr().err


def test_arguments_are_gone_on_with(tmp_path: Path) -> None:
    """They belong to a run's settings, and flags go before those."""
    write_config(tmp_path, TrainConfig(env=OTHER, env_args={"a": 1, "b": None}))
    resume = ["--resume", str(tmp_path)]
    assert parse_settings(resume)[0].env_args == {"a": 1, "b": None}
    assert parse_settings([*resume, "--env-args", "a=2"])[0].env_args == {"a": 2}


def test_description() -> None:
    """A line for each origin: all settings, each once."""
    config, origins = parse_settings(["--t-max", "7"])
    preset, flags, defaults = describe_settings(config, origins)
    assert preset.startswith("preset CartPole-v1: env=CartPole-v1 ")
    assert defaults.startswith("defaults: ")
    assert flags == "flags: t_max=7"
    for name, value in config.to_dict().items():
        found = [line for line in (preset, defaults, flags) if f" {name}={value}" in line]
        assert len(found) == 1, name


# Refused ----------------------------------------------------------------------------------------


def test_values_are_checked() -> None:
    """As `TrainConfig.validate` does."""
    with pytest.raises(ConfigError, match="--workers is 0; it must be at least 1"):
        parse_settings(["--workers", "0"])


@pytest.mark.parametrize(
    "arguments", [["--no-such-flag", "1"], ["--workers", "two"], ["--optimizer", "sgd"]]
)
def test_flags_are_checked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that does not exist, or a value of another kind, ends the program with code 2."""
    with pytest.raises(SystemExit) as raised:
        parse_settings(arguments)
    assert raised.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--preset", "CartPole-v1"], "leave --preset out"),
        (["--env", OTHER], f"the run's env is CartPole-v1, not {OTHER}"),
    ],
)
def test_resume_with_what_contradicts_it(run: Path, extra: list[str], message: str) -> None:
    """The run's environment and settings are fixed."""
    with pytest.raises(ConfigError, match=message):
        parse_settings(["--resume", str(run), *extra])


def test_resume_of_no_run(tmp_path: Path) -> None:
    """A directory without config.yaml."""
    with pytest.raises(ConfigError, match=f"{tmp_path} is no run directory"):
        parse_settings(["--resume", str(tmp_path)])


@pytest.mark.parametrize(
    "text", ["", "settings", "[1, 2]", "other: 1", "settings: 3", "settings: [1]", "a: b: c", "\0"]
)
def test_resume_with_a_damaged_config(run: Path, text: str) -> None:
    """The file is named, in one line."""
    (run / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml is damaged"):
        parse_settings(["--resume", str(run)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"worker": 2}, "unknown setting 'worker'"), ({"workers": "two"}, "workers")],
)
def test_resume_with_an_edited_config(run: Path, settings: dict[str, object], message: str) -> None:
    """A setting that is none, or that has a value of another kind."""
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["settings"] |= settings
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=message):
        parse_settings(["--resume", str(run)])


# Config files -----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two settings, one of which the preset sets to something else."""
    path = tmp_path / "mine.yaml"
    path.write_text("t_max: 11\nseed: 7\n")
    return path


def test_config_goes_before_the_preset(file: Path) -> None:
    """And that before the defaults."""
    config, origins = parse_settings(["--config", str(file)])
    assert (config.t_max, config.seed) == (11, 7)
    assert config.preset == "CartPole-v1"
    assert config.gae_lambda == PRESET["gae_lambda"] != TrainConfig().gae_lambda
    assert origins["t_max"] == origins["seed"] == f"config {file}"
    assert origins["gae_lambda"] == origins["preset"] == "preset CartPole-v1"
    assert origins["gamma"] == "defaults"


def test_flags_go_before_the_config(file: Path) -> None:
    """Also where a flag sets what the default is."""
    config, origins = parse_settings(["--seed", "0", f"--config={file}", "--steps", "9"])
    assert (config.t_max, config.seed, config.steps) == (11, 0, 9)
    assert (origins["t_max"], origins["seed"]) == (f"config {file}", "flags")


@pytest.mark.parametrize(
    ("text", "flags", "env", "preset"),
    [
        (f"env: {OTHER}", [], OTHER, None),
        ("env: ALE/Pong-v5", [], "ALE/Pong-v5", "Atari"),
        ("env: ALE/Pong-v5", ["--env", OTHER], OTHER, None),
        (f"env: {OTHER}\npreset: CartPole-v1", [], OTHER, "CartPole-v1"),
        ("preset: null", [], "CartPole-v1", None),
    ],
)
def test_which_preset_a_config_goes_over(
    file: Path, text: str, flags: list[str], env: str, preset: str | None
) -> None:
    """The one that it names, else that of its environment, or the flag's."""
    file.write_text(text)
    config, _ = parse_settings(["--config", str(file), *flags])
    assert (config.env, config.preset) == (env, preset)
    default = TrainConfig()
    of_preset = load_preset(preset) if preset else {"t_max": default.t_max, "steps": default.steps}
    assert (config.t_max, config.steps) == (of_preset["t_max"], of_preset["steps"])


def test_config_with_all_settings(file: Path) -> None:
    """It decides all, the preset that it names nothing."""
    settings = TrainConfig().to_dict() | {"preset": "CartPole-v1", "t_max": 3}
    file.write_text(yaml.safe_dump(settings))
    config, origins = parse_settings(["--config", str(file)])
    assert config.to_dict() == settings
    assert set(origins.values()) == {f"config {file}"}


def test_config_of_a_run(run: Path) -> None:
    """Its settings, also those that the preset has otherwise today; a new directory."""
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text())
    del content["settings"]["gae_lambda"]  # as of a version that did not have it
    path.write_text(yaml.safe_dump(content))
    config, origins = parse_settings(["--config", str(path), "--seed", "8"])
    assert config.to_dict() == content["settings"] | {
        "seed": 8,
        "gae_lambda": TrainConfig().gae_lambda,
    }
    assert (config.resume, config.outdir) == (None, None)
    assert set(origins.values()) == {f"config {path}", "flags", "defaults"}
    assert [line.split(":")[0] for line in describe_settings(config, origins)] == [
        f"config {path}",
        "flags",
        "defaults",
    ]


@pytest.mark.parametrize("name", ["env", "eval_episodes"])
def test_description_with_a_config(file: Path, name: str) -> None:
    """A line for it, in the order of precedence but for the defaults, which are many."""
    value = PRESET[name]
    file.write_text(f"{name}: {value}\n")
    flags = ["--sticky-actions", "--steps", "9"]
    lines = describe_settings(*parse_settings(["--config", str(file), *flags]))
    assert [line.split(": ")[0] for line in lines] == [
        "preset CartPole-v1",
        f"config {file}",
        "flags",
        "defaults",
    ]
    assert lines[1:3] == [f"config {file}: {name}={value}", "flags: sticky_actions=True steps=9"]


def test_values_in_a_config(file: Path) -> None:
    """As YAML has them; numbers also as people write them."""
    file.write_text(
        "learning_rate: 7e-4\ngamma: 1\nsuccessful_score: 9e1\nlstm: true\n"
        "hidden_sizes: [3, 2]\noptimizer: adam\nenv_args: {sutton_barto_reward: true}\n"
    )
    config, _ = parse_settings(["--config", str(file)])
    assert (config.learning_rate, config.gamma, config.successful_score) == (7e-4, 1.0, 90.0)
    assert (config.lstm, config.hidden_sizes, config.optimizer) == (True, (3, 2), "adam")
    assert config.env_args == {"sutton_barto_reward": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker: 2", r"unknown setting 'worker' \(near: workers"),
        ("1: 2", "unknown setting 1"),
        ("settings: {worker: 2}", r"unknown setting 'worker' \(near: workers"),
        ("outdir: here", "outdir is no setting of a run; give it as --outdir"),
        ("workers: two", "workers is 'two'; it must be a whole number"),
        ("workers: 2.0", "workers is 2.0; it must be a whole number"),
        ("workers: true", "workers is True; it must be a whole number"),
        ("workers: null", "workers is None; it must be a whole number"),
        ("gamma: high", "gamma is 'high'; it must be a number"),
        ("gamma: true", "gamma is True; it must be a number"),
        ("successful_score: high", "successful_score is 'high'; it must be a number, or null"),
        ("optimizer: sgd", "optimizer is 'sgd'; it must be one of rmsprop, adam"),
        ("optimizer: [adam]", r"optimizer is \['adam'\]; it must be one of"),
        ("lstm: 1", "lstm is 1; it must be true or false"),
        ("hidden_sizes: 64", "hidden_sizes is 64; it must be a list of whole numbers"),
        ("hidden_sizes: [a]", r"hidden_sizes is \['a'\]; it must be a list of whole numbers"),
        ("env: 3", "env is 3; it must be text"),
        ("preset: 3", "preset is 3; it must be text, or null"),
        ("env_args: x=3", "env_args is 'x=3'; it must be a mapping"),
        ("preset: no_such", "unknown preset 'no_such'; there are: "),
        ("workers: 0", "--workers is 0; it must be at least 1"),
        ("gamma: nan", "--gamma is nan; it must be a finite number"),
        ("", "holds no settings; write lines such as steps: 100000"),
        ("settings:", "holds no settings"),
        ("[1, 2]", "holds no settings"),
        ("a: b: c", "cannot be read as YAML: mapping values are not allowed here .* line 1"),
        ("\0", "cannot be read as YAML"),
        ("[" * 2000, "cannot be read as YAML"),
    ],
)
def test_config_that_cannot_be_used(file: Path, text: str, message: str) -> None:
    """One line that says what is wrong in it."""
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        parse_settings(["--config", str(file)])
    assert "\n" not in str(raised.value)


def test_config_that_cannot_be_read(tmp_path: Path) -> None:
    """It is named, and why."""
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read: No such file"):
        parse_settings(["--config", str(tmp_path / "no.yaml")])
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        parse_settings(["--config", str(tmp_path)])
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bytes\.yaml cannot be read as YAML"):
        parse_settings(["--config", str(tmp_path / "bytes.yaml")])


def test_config_with_what_contradicts_it(run: Path, file: Path) -> None:
    """Two sources of which each means to decide."""
    with pytest.raises(ConfigError, match="leave --config out"):
        parse_settings(["--config", str(file), "--resume", str(run)])
    for preset in ("Atari", "None"):
        with pytest.raises(ConfigError, match="leave --preset out"):
            parse_settings(["--config", str(file), "--preset", preset])
