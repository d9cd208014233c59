"""Settings of a run: what each one means, its default, and the tuned presets."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from tyro.constructors import PrimitiveConstructorSpec

from a3c_tf.cores import core_count
from a3c_tf.errors import ConfigError, near

Backend = Literal["threads", "processes"]
PATHS = ("outdir", "resume", "config")  # of one machine: flags, but no settings of a run
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    tuple: "a list of whole numbers",
}


class _Loader(yaml.SafeLoader):
    """Without aliases: a few lines of them can mean more than memory holds, or themselves."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next value."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)


def read_yaml(text: str) -> Any:
    """What a YAML text holds.

    Raises:
        ValueError: it is no YAML, or has a value that its reader cannot make; in one line.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Of a number, a date or a !!type that is none
        raise ValueError(f"a value is not what it says it is: {error!r}") from error


def _named_values(arguments: list[str]) -> dict[str, Any]:
    """NAME=VALUE, as on a command line; values as in YAML: `False`, `3`, `8x8`, `[1, 2]`."""
    values = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name and equals):
            raise ValueError(f"{argument!r} is not NAME=VALUE")
        try:
            values[name] = read_yaml(value)
        except ValueError as error:
            raise ValueError(f"{argument!r} has no value that YAML can read") from error
    return values


NamedValues = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_named_values,
        is_instance=lambda values: isinstance(values, dict),
        str_from_instance=lambda values: [f"{name}={value}" for name, value in values.items()],
    ),
]


@dataclass(frozen=True)
class TrainConfig:
    """Trains an A3C agent on a Gymnasium environment."""

    env: str = "CartPole-v1"
    """Environment id in Gymnasium's registry, or my_package:MyEnv-v0."""
    env_args: NamedValues = field(default_factory=dict)
    """Arguments of the environment, such as is_slippery=False."""
    sticky_actions: bool = False
    """Atari: each frame repeats the last action with probability 0.25."""
    preset: str | None = None
    """Tuned settings by name; without it, those named like the environment, if there are any."""
    outdir: Path | None = None
    """Run directory, which must be new. By default runs/ENV/DATE-TIME-seedSEED."""
    resume: Path | None = None
    """Run directory to go on with, from its newest checkpoint and with its settings."""
    config: Path | None = None
    """YAML file with settings, or a run's config.yaml, which repeats that run; flags override."""
    seed: int = 0
    """Root of all random numbers: weights, actions, environments."""

    backend: Literal["auto", "threads", "processes"] = "auto"
    """Workers as threads, or as processes with an interpreter lock of their own; auto: processes
    if there is more than one worker."""
    workers: int = field(default_factory=core_count)
    """Workers; by default one for each core."""
    envs_per_worker: int = 8
    """Environments that each worker steps together (K); 1 is the paper's A3C."""
    t_max: int = 5
    """Steps of a rollout (T): one update is made from t_max x envs_per_worker steps."""
    deterministic: bool = False
    """Threads take turns in a fixed order: the same command gives the same run, bit for bit."""
    eager: bool = False
    """Run everything line by line, slowly, as one does to find a mistake; needs threads."""
    steps: int = 1_000_000
    """Environment steps of all workers together, at which the run ends."""

    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 1.0
    """1: the paper's n-step returns; less: generalised advantage estimation."""
    learning_rate: float = 7e-4
    """Step size of the optimizer at the start."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """Constant, or linear to zero at the last of `steps`."""
    entropy: float = 0.01
    """Weight of the entropy bonus at the start, per nat."""
    entropy_schedule: Literal["constant", "linear"] = "constant"
    """Constant, or linear to zero at the last of `steps`."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_gradient_norm: float = 0.5
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    reward_clip: float = 0.0
    """Rewards are learned within plus and minus this; 0 leaves them alone."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over the steps of a rollout: mean, or the paper's sum."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSprop with statistics shared by all workers (the paper's), or Adam."""
    optimizer_epsilon: float = 1e-5
    """Added to the mean square (rmsprop) or its root (adam) before division."""

    network: Literal["mlp", "paper_cnn", "nature_cnn", "impala"] = "mlp"
    """Dense layers; or convolutions for images: the A3C paper's net, the larger one of DQN's Nature
    paper, or IMPALA's residual one."""
    lstm: bool = False
    """A LSTM behind each trunk, for environments that do not show everything at once."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of an mlp."""
    activation: str = "tanh"
    """Of the hidden layers of an mlp, by Keras's name."""
    shared_trunk: bool = False
    """One trunk of hidden layers for policy and value, instead of one for each."""
    normalize_observations: bool = False
    """Observations in units of their own spread, from their mean, by what training has seen."""
    normalize_rewards: bool = False
    """Rewards are learned in units of the spread of their discounted sum."""
    initializer: Literal["orthogonal", "glorot_uniform"] = "orthogonal"
    """Of the weights; glorot_uniform is Keras's default."""

    eval_interval: int = 50_000
    """Environment steps between evaluations; 0 for none but the last."""
    eval_seconds: float = 0.0
    """Seconds between evaluations, in place of eval_interval; 0 goes by steps."""
    eval_episodes: int = 20
    """Whole episodes in one evaluation."""
    video_every: int = 0
    """Evaluations from one mp4 in videos/ to the next, 0 for none; needs the extra `video`."""
    successful_score: float | None = None
    """Mean evaluation return at which the run ends as solved."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints of the full training state."""
    stall_timeout: float = 300.0
    """Seconds without a step after which a worker is reported, and after twice that the run ends;
    0 for never."""

    def validate(self) -> None:
        """Checks what types cannot say.

        Raises:
            ConfigError: names the setting, its value and what it may be.
        """
        for name, value in self.to_dict().items():
            if isinstance(value, float):
                self._require(name, math.isfinite(value), "a finite number")
        for name in ("workers", "envs_per_worker", "t_max", "steps", "eval_episodes"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "seed",
            "entropy",
            "value_coefficient",
            "max_gradient_norm",
            "reward_clip",
            "eval_interval",
            "eval_seconds",
            "video_every",
            "stall_timeout",
        ):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("learning_rate", "optimizer_epsilon", "checkpoint_seconds"):
            self._require(name, getattr(self, name) > 0, "more than 0")
        for name in ("gamma", "gae_lambda"):
            self._require(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        if self.deterministic or self.eager:
            backend = resolve_backend(self)
            self._require("backend", backend == "threads", "threads for --deterministic or --eager")
            self._require("eval_seconds", not self.eval_seconds, "0 for --deterministic or --eager")
        in_windows = self.env_args.get("render_mode") == "human"  # one for each environment
        self._require("env_args", not in_windows, "without render_mode=human; see a3c-tf watch")
        self._require("hidden_sizes", all(units > 0 for units in self.hidden_sizes), "positive")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {getattr(self, name)}; it must be {what}")

    def to_dict(self) -> dict[str, Any]:
        """What a run needs to be repeated, as plain values: no paths."""
        settings = asdict(self)
        for name in PATHS:
            del settings[name]
        settings["hidden_sizes"] = list(self.hidden_sizes)
        return settings

    def updated(self, settings: dict[str, Any], origin: str) -> TrainConfig:
        """A copy with some settings replaced, as read from a file.

        Raises:
            ConfigError: a name that is no setting, or a value of another kind.
        """
        known, kinds = self.to_dict(), get_type_hints(TrainConfig)
        for name in settings.keys() - known.keys():
            if name in PATHS:
                raise ConfigError(f"{origin}: {name} is no setting of a run; give it as --{name}")
            raise ConfigError(f"{origin}: unknown setting {name!r}{near(str(name), known)}")
        values = {}
        for name, value in settings.items():
            try:
                values[name] = _value(value, kinds[name])
            except (TypeError, ValueError, OverflowError) as error:
                must_be = f"it must be {_words(kinds[name])}"
                raise ConfigError(f"{origin}: {name} is {value!r}; {must_be}") from error
        return replace(self, **values)


def _value(value: Any, kind: Any) -> Any:
    """A value from a file as a setting of this type; raises where it is none."""
    origin, options = get_origin(kind), get_args(kind)
    if origin is UnionType:  # something or None
        return None if value is None else _value(value, options[0])
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(item, options[0]) for item in value)
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        return float(value)  # to YAML 7e-4 is a string: it wants 7.0e-4
    if value in options if origin is Literal else type(value) is (origin or kind):
        return value
    raise TypeError


def _words(kind: Any) -> str:
    options = get_args(kind)
    if get_origin(kind) is UnionType:
        return f"{_words(options[0])}, or null"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(options)}"
    return WORDS[get_origin(kind) or kind]


def resolve_backend(config: TrainConfig) -> Backend:
    """What "auto" stands for: workers in one process take the interpreter lock from each other."""
    if config.backend == "auto":
        alone = config.workers == 1 or config.deterministic or config.eager
        return "threads" if alone else "processes"
    return config.backend


def preset_names() -> list[str]:
    """The presets that come with the package."""
    files = resources.files("a3c_tf").joinpath("presets").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_preset(name: str) -> dict[str, Any]:
    """The settings of a preset.

    Raises:
        ConfigError: there is none of this name.
    """
    names = preset_names()
    if name not in names:
        raise ConfigError(f"unknown preset {name!r}; there are: {', '.join(names)}")
    text = resources.files("a3c_tf").joinpath("presets").joinpath(f"{name}.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings
