"""Exported policies: what they do where this package is not, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from zipfile import ZipFile

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from a3c_tf import standalone
from a3c_tf.actions import FORBIDDEN
from a3c_tf.agents.a3c import A3CAgent
from a3c_tf.agents.base import Agent
from a3c_tf.agents.n_step_q import NStepQAgent
from a3c_tf.commands.export import PACKAGES, SUFFIXES
from a3c_tf.commands.export import export as export_command
from a3c_tf.config import TrainConfig
from a3c_tf.errors import ConfigError
from a3c_tf.export import (
    ExportError,
    Recording,
    act_elsewhere,
    largest_difference,
    record,
    write_policy,
)
from a3c_tf.layers import EpisodicLSTM
from a3c_tf.networks import build_action_value
from a3c_tf.normalization import RunningNormalization
from a3c_tf.observations import Observations
from a3c_tf.portable import classes_needed, input_names, portable_policy
from a3c_tf.quiet import keras, tf
from a3c_tf.run_directory import write_config
from tests.helpers import make_agent, vector

KINDS = [kind for kind in SUFFIXES if all(find_spec(name) for name in PACKAGES.get(kind, ()))]
STEPS = 13  # of what is recorded
LENGTH = 4  # of an episode, so that several begin in that

Outputs = dict[str, Any]


class RandomEnv(gym.Env[Any, Any]):
    """Random observations, episodes of four steps; refuses actions that it should not be given.

    The last observation of an episode forbids everything, if there are masks.

    Args:
        observation_space: of what is shown.
        action_space: of what is taken.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._shown: Any = None
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        if seed is not None:
            self.observation_space.seed(seed)
        self._step = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        assert self.action_space.contains(action), action
        if isinstance(self._shown, dict) and "action_mask" in self._shown:
            assert isinstance(self.action_space, MultiDiscrete)
            first = np.cumsum([0, *self.action_space.nvec.ravel()[:-1]])
            chosen = first + np.ravel(action - self.action_space.start)
            assert self._shown["action_mask"][chosen].all()
        self._step += 1
        return self._show(), 0.0, self._step == LENGTH, False, {}

    def _show(self) -> Any:
        self._shown = self.observation_space.sample()
        if isinstance(self._shown, dict) and "action_mask" in self._shown:
            self._shown["action_mask"][:] = self._shown["action_mask"] | (np.arange(7) % 2)
            if self._step == LENGTH:
                self._shown["action_mask"][:] = 0
        return self._shown


@keras.saving.register_keras_serializable("tests")
class OwnTrunk(keras.layers.Layer):
    """A layer of a user's, with one of this package's inside."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.normal = RunningNormalization()

    def build(self, input_shape: Any) -> None:
        """Makes the layer inside."""
        self.normal.build(input_shape)

    def call(self, inputs: Any) -> Any:
        """[B, n]."""
        return tf.sin(self.normal(inputs))


@keras.saving.register_keras_serializable("tests")
class OwnLSTM(EpisodicLSTM):
    """A recurrent layer of a user's, which must know how many environments there are."""


NUMBERS = Box(-1.0, 1.0, (3,))
IMAGE = Box(0, 255, (36, 36, 2), np.uint8)
DICT = Dict(
    {
        "value": NUMBERS,  # the name of an output
        "place": Discrete(4, start=2),
        "more": Tuple([MultiDiscrete([2, 3]), MultiBinary(2), Box(-5.0, 5.0, (), np.float64)]),
    }
)
CHOICES = MultiDiscrete([[2], [5]], start=[[1], [-3]])
BOX = Box(
    np.array([[-2.0, -np.inf, 0.1]]), np.array([[2.0, np.inf, 0.3]]), (1, 3), dtype=np.float64
)
LSTM = {"lstm": True, "normalize": True}


def _agent(observations: gym.Space, actions: gym.Space, **nets: Any) -> Agent:
    return make_agent(RandomEnv(observations, actions), (6,), nets=nets)


def _own_agent(observations: gym.Space, actions: gym.Space) -> Agent:
    """A recurrent net of layers of the user's."""
    inputs = keras.Input((3,)), keras.Input((4,)), keras.Input(())
    output, after = OwnLSTM(2)([OwnTrunk()(inputs[0]), *inputs[1:]])
    head = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
    value = keras.layers.Reshape(())(keras.layers.Dense(1)(output))
    net = keras.Model(list(inputs), [head(output), value, after])
    return A3CAgent(net, observations, actions)


def _q_agent(observations: gym.Space, actions: gym.Space) -> Agent:
    return NStepQAgent(build_action_value(observations, actions, (6,)), observations, actions)


class Case(NamedTuple):
    """An agent and its spaces."""

    observations: gym.Space
    actions: gym.Space
    make: Callable[..., Agent] = _agent
    nets: dict[str, Any] = {}  # noqa: RUF012  (never changed)


CASES = {
    "discrete": Case(NUMBERS, Discrete(3, start=5)),
    "masks": Case(Dict(action_mask=MultiBinary(7), observation=NUMBERS), CHOICES),
    "bits": Case(Discrete(6, start=-2), MultiBinary([2, 3])),
    "box": Case(NUMBERS, BOX, nets={"normalize": True}),
    "dict": Case(DICT, Discrete(2), nets={"normalize": True, "shared_trunk": True}),
    "image": Case(IMAGE, Discrete(4), nets={"normalize": True, "network": "paper_cnn"}),
    "lstm": Case(NUMBERS, Box(-1.0, 1.0, (2,)), nets=LSTM),
    "lstm of both": Case(Dict(a=NUMBERS, b=MultiBinary(2)), Discrete(3), nets=LSTM),
    "q": Case(NUMBERS, Discrete(3, start=1), _q_agent),
}


def _make(case: Case) -> tuple[Agent, Recording]:
    """An agent with weights of all sizes, and what it did."""
    agent = case.make(case.observations, case.actions, **case.nets)
    rng = np.random.default_rng(3)  # with which all take several actions
    for variable in agent.weights:
        fan_in = np.prod(variable.shape[:-1]) if variable.shape.rank > 1 else 1
        variable.assign(rng.normal(scale=fan_in**-0.5, size=variable.shape))
    for layer in agent.normalizations.layers:
        layer.variance.assign(np.abs(layer.variance) + 0.1)
    envs = vector(RandomEnv(case.observations, case.actions))
    return agent, record(agent, envs, STEPS, greedy=False)


# Elsewhere ---------------------------------------------------------------------------------------


MANY = """
namespace = {"__name__": "standalone"}
exec(open(sys.argv[1]).read(), namespace)
for arguments in json.loads(sys.argv[2]):
    try:
        namespace["main"](*arguments)
    except Exception as error:
        print(arguments[:2], repr(error), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case in every format, all played in one process that cannot import the package."""
    root = tmp_path_factory.mktemp("elsewhere")
    calls, recordings, names = [], {}, {}
    for name, case in CASES.items():
        agent, recordings[name] = _make(case)
        policy = portable_policy(agent)
        names[name] = list(policy.output)
        inputs = root / f"{name}.npz"
        np.savez(inputs, *(recordings[name].inputs[one] for one in policy.input))
        for kind in KINDS:
            path = root / f"{name}{SUFFIXES[kind]}"
            write_policy(policy, kind, path)
            outputs = f"{root}/{name}.{kind}.npz"
            named = {"inputs": list(policy.input), "outputs": names[name], "classes": {}}
            calls.append((kind, str(path), str(inputs), outputs, json.dumps(named)))
    source = "import json, sys\n" + MANY
    command = [sys.executable, "-c", source, standalone.__file__, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    played: dict[str, Any] = {"errors": done.stderr, "recordings": recordings}
    for kind in KINDS:
        for name in CASES:
            path = root / f"{name}.{kind}.npz"
            if path.exists():
                with np.load(path) as arrays:
                    outputs = {one: arrays[f"arr_{i}"] for i, one in enumerate(names[name])}
                played[kind, name] = outputs
    return played


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_acts_as_the_agent(elsewhere: dict[str, Any], kind: str, name: str) -> None:
    """The same actions, values and states, over several episodes; each output is compared."""
    assert (kind, name) in elsewhere, elsewhere["errors"]
    ours, theirs = elsewhere["recordings"][name].outputs, elsewhere[kind, name]
    assert largest_difference(ours, theirs) < 1e-4
    assert theirs.keys() - ours.keys() == ({"mean", "log_std"} if "mean" in theirs else set())
    assert len(np.unique(ours["action"])) > 1
    assert theirs["action"].dtype == ours["action"].dtype


def test_recorded_masks_and_starts(elsewhere: dict[str, Any]) -> None:
    """What is compared covers masks that forbid all, and starts in the middle."""
    masks = elsewhere["recordings"]["masks"].inputs["action_mask"].reshape(STEPS, -1)
    assert {int(mask.any()) for mask in masks} == {0, 1}
    assert elsewhere["recordings"]["lstm"].inputs["start"].ravel().tolist() == [
        *([1.0, 0.0, 0.0, 0.0, 0.0] * 3)[:STEPS]
    ]
    assert (elsewhere["recordings"]["masks"].outputs["logits"] == FORBIDDEN).any()


def test_box_distribution(elsewhere: dict[str, Any]) -> None:
    """Mean and standard deviation are in the environment's units: they give the same density."""
    agent, recording = _make(CASES["box"])
    parts = [recording.inputs["observation"][:, 0]]
    starts = np.zeros(STEPS, np.float32)
    distribution, _ = agent.distribution(parts, agent.first_state(STEPS), starts, 0.0)
    drawn = np.array([[0.3, -1.0, 0.5]], np.float32)
    middle, unit = np.array([0.0, 0.0, 0.2]), np.array([2.0, 1.0, 0.1])
    density = distribution.log_prob(np.repeat(drawn, STEPS, 0)) - np.log(unit).sum()
    for kind in KINDS:
        outputs = elsewhere[kind, "box"]
        mean, log_std = (outputs[name][:, 0, 0].astype(np.float64) for name in ("mean", "log_std"))
        z = (middle + unit * drawn - mean) / np.exp(log_std)
        same = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
        np.testing.assert_allclose(same, density, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["keras", KINDS[-1]])
def test_other_classes(tmp_path: Path, kind: str) -> None:
    """A layer of the user's goes along, but a Keras file needs its class where it is loaded."""
    case = Case(NUMBERS, Discrete(2), _own_agent)
    agent, recording = _make(case)
    policy = portable_policy(agent)
    path = tmp_path / f"policy{SUFFIXES[kind]}"
    write_policy(policy, kind, path)
    theirs = act_elsewhere(policy, kind, path, recording.inputs)
    assert largest_difference(recording.outputs, theirs) < 1e-4
    needed = classes_needed(policy)
    assert needed == {
        "OwnLSTM": "tests.test_export",
        "OwnTrunk": "tests.test_export",
        "RunningNormalization": "a3c_tf.normalization",
    }


# The policy as a model ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "q"])
def test_greedy(name: str) -> None:
    """No noise goes in, and out comes what `Agent.act` does, for several observations at once."""
    agent, recording = _make(CASES[name])
    policy = portable_policy(agent, greedy=True)
    assert "noise" not in policy.input
    inputs = {one: np.concatenate(recording.inputs[one]) for one in policy.input}
    drawing = portable_policy(agent)
    inputs["noise"] = np.zeros((STEPS, drawing.input["noise"].shape[-1]), np.float32)
    action = policy({one: inputs[one] for one in policy.input})["action"].numpy()
    np.testing.assert_array_equal(action, drawing(inputs)["action"].numpy())
    parts = [recording.inputs[one][:, 0] for one in input_names(agent)]
    parts = [
        part - np.asarray(space.start) if hasattr(space, "start") else part
        for part, space in zip(parts, agent.observations.parts, strict=True)
    ]
    act = agent.compile_act(STEPS, greedy=True)
    state = tf.constant(np.concatenate(recording.inputs["state"]))
    starts = tf.constant(np.concatenate(recording.inputs["start"]))
    types = [dtype for _, dtype in agent.observations.layout()]
    arrays = [part.astype(dtype) for part, dtype in zip(parts, types, strict=True)]
    wanted, _ = act(tf.zeros([2], tf.int64), state, starts, *map(tf.constant, arrays))
    np.testing.assert_allclose(action, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_bounds_of_another_dtype() -> None:
    """A bound that float32 cannot hold is rounded inwards: no action is outside of its space."""
    space = Box(np.array([0.7, -0.1]), np.array([0.8, 0.1]), dtype=np.float64)
    policy = portable_policy(_agent(NUMBERS, space))
    for side in (-1.0, 1.0):
        inputs = {"observation": np.zeros((1, 3)), "noise": np.full((1, 2), side * 1e6)}
        action = policy(inputs)["action"].numpy()[0]
        assert space.contains(action)
        np.testing.assert_allclose(action, space.low if side < 0 else space.high, rtol=1e-6)


def test_input_names() -> None:
    """No name is given twice, and all begin with a letter."""
    space = Dict(
        {"value": NUMBERS, "_hidden": NUMBERS, "a b": NUMBERS, "a_b": NUMBERS, "noise": NUMBERS}
    )
    names = input_names(cast(Agent, SimpleNamespace(observations=Observations(space))))
    assert names == [
        "observation__hidden",
        "a_b",
        "observation_a_b",
        "observation_noise",
        "observation_value",
    ]


def test_keras_file_names_no_class_of_ours(tmp_path: Path) -> None:
    """Nothing in it says `a3c_tf`."""
    agent, _ = _make(CASES["lstm"])
    write_policy(portable_policy(agent), "keras", tmp_path / "policy.keras")
    with ZipFile(tmp_path / "policy.keras") as file:
        assert "a3c_tf" not in file.read("config.json").decode()


def test_other_agents_are_refused() -> None:
    """It is not known how they act."""
    with pytest.raises(ConfigError, match="SimpleNamespace; only A3CAgent and NStepQAgent"):
        portable_policy(cast(Agent, SimpleNamespace()))


@keras.saving.register_keras_serializable("tests")
class Zeta(keras.layers.Layer):
    """What TensorFlow Lite has no words for."""

    def call(self, inputs: Any) -> Any:
        """[B, n]."""
        return tf.math.zeta(inputs, 2.0)


def test_what_a_format_cannot_say(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line, and none of the converter's pages."""
    inputs = keras.Input((3,))
    outputs = [keras.layers.Dense(2)(Zeta()(inputs)), keras.layers.Reshape(())(inputs[:, :1])]
    agent = A3CAgent(keras.Model(inputs, outputs), NUMBERS, Discrete(2))
    with pytest.raises(ConfigError, match="cannot be written as tflite") as caught:
        write_policy(portable_policy(agent), "tflite", tmp_path / "policy.tflite")
    assert "Zeta" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


# The comparison ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("action", lambda array: array + (np.arange(4)[:, None] == 1), "action is not .* 1 of 4"),
        ("value", lambda array: array + 1e-3, "value is not the agent's on 4 of 4 .* 0.001"),
        ("value", lambda array: array * np.nan, "value is not the agent's on 4 of 4"),
        ("value", lambda array: array[:, 0], "value has the shape"),
    ],
)
def test_differences_are_found(
    name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], words: str
) -> None:
    """Another action, or numbers that rounding does not explain."""
    ours = {"action": np.ones((4, 1), np.int64), "value": np.zeros((4, 1), np.float32)}
    assert largest_difference(ours, ours) == 0.0
    with pytest.raises(ExportError, match=words):
        largest_difference(ours, {**ours, name: change(ours[name])})


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory with a CartPole agent, `run`, in the current one."""
    monkeypatch.chdir(tmp_path)
    write_config(_made(tmp_path / "run"), TrainConfig(env="CartPole-v1"))
    with gym.make("CartPole-v1") as env:
        make_agent(env).save(tmp_path / "run" / "best")
    return Path("run")


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what goes in and out, and how the comparison went."""
    assert export_command(["run", "--format", "keras", "--greedy", "--observations", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "inputs: observation float32 [B, 4]"
    assert lines[2] == "outputs: action int64 [B], logits float32 [B, 2], value float32 [B]"
    assert re.fullmatch(
        r"compared with the agent: 7 observations, same actions, largest difference \S+", lines[3]
    )
    assert sorted(path.name for path in run.iterdir()) == ["best", "config.yaml", "policy.keras"]


def test_command_names_classes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that a Keras file does not hold."""
    with gym.make("CartPole-v1") as env:
        inputs = keras.Input((4,))
        outputs = [keras.layers.Dense(size)(OwnTrunk()(inputs)) for size in (2, 1)]
        net = keras.Model(inputs, [outputs[0], keras.layers.Reshape(())(outputs[1])])
        A3CAgent(net, env.observation_space, env.action_space).save(run / "best")

    def here(policy: keras.Model, kind: str, path: Path, inputs: Outputs) -> Outputs:
        outputs = policy({name: inputs[name][:, 0] for name in policy.input})
        return {name: output.numpy()[:, np.newaxis] for name, output in outputs.items()}

    monkeypatch.setattr("a3c_tf.export.act_elsewhere", here)
    assert export_command(["run", "--format", "keras", "--observations", "3"]) == 0
    assert (
        "classes that must be importable where it is loaded: OwnTrunk of tests.test_export, "
        "RunningNormalization of a3c_tf.normalization\n"
    ) in capsys.readouterr().out


def test_command_finds_a_difference(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, one line, and nothing is left of what was written."""
    wrong = {"action": np.full((5, 1), 7), "value": np.zeros((5, 1)), "logits": np.zeros((5, 1, 2))}
    monkeypatch.setattr("a3c_tf.export.act_elsewhere", lambda *_: wrong)
    assert export_command(["run", "--format", "savedmodel", "--observations", "5"]) == 1
    assert re.fullmatch(
        "error: action is not the agent's on 5 of 5 .*; nothing has been written\n",
        capsys.readouterr().err,
    )
    assert sorted(path.name for path in run.iterdir()) == ["best", "config.yaml"]


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    """The last line of what the other process says."""
    agent, recording = _make(CASES["discrete"])
    path = tmp_path / "policy.none"
    with pytest.raises(ExportError, match=r"policy cannot act by itself: .*policy\.none"):
        act_elsewhere(portable_policy(agent), KINDS[-1], path, recording.inputs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("missing --format keras", "missing holds no agent"),
        ("run --format keras --out policy.h5", "--out is policy.h5; .* ends in .keras"),
        (
            "run --format keras --out no/policy.keras",
            "no/policy.keras cannot be written: No such file",
        ),
        ("run --format tflite --out run/config.yaml", "config.yaml exists already"),
        ("run --format keras --observations 0", "--observations is 0; it must be at least 1"),
        ("run --format keras --env Acrobot-v1", "Acrobot-v1 has the spaces"),
        ("run/damaged --format keras --env CartPole-v1", "agent in .*damaged cannot be loaded"),
    ],
)
def test_command_refuses(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    """Exit code 2 and one line."""
    shutil.copytree(run / "best", run / "damaged")
    (run / "damaged" / "model.keras").write_bytes(b"PK")
    before = sorted(run.rglob("*"))
    assert export_command(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"error: .*{words}.*\n", err)
    assert sorted(run.rglob("*")) == before


def test_command_refuses_a_format_that_is_not_installed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the packages and says how to install them."""
    monkeypatch.setattr("a3c_tf.commands.export.find_spec", lambda name: None)
    assert export_command(["run", "--format", "onnx"]) == 2
    assert capsys.readouterr().err == (
        "error: --format onnx needs tf2onnx and onnxruntime: pip install 'a3c_tf[export]'\n"
    )
