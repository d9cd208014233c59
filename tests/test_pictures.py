"""When pictures of an agent are made, and what is on them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from a3c_tf import films, pictures
from a3c_tf.envs.factory import RegisteredEnv
from a3c_tf.evaluation import Evaluator
from a3c_tf.films import Gif
from a3c_tf.pictures import EPISODE_PAUSE, Pictures, make_pictures
from a3c_tf.samples import STEPS, Sample
from a3c_tf.telemetry import EventLog
from a3c_tf.training import train_agent_async
from tests.envs import MAX_LENGTH, STEP, KnownEnv
from tests.helpers import make_agent

LOGGER = logging.getLogger("test")
GAMMA = 0.9


class DrawnEnv(KnownEnv):
    """Draws itself, and counts how often; `on_render` is called before.

    Args:
        on_render: called before every drawing.
        settings: of `KnownEnv`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  (Gymnasium's)
    render_mode = "rgb_array"

    def __init__(self, on_render: Callable[[], None] = lambda: None, **settings: Any) -> None:
        super().__init__(**settings)
        self._on_render = on_render

    def render(self) -> Any:
        """Black."""
        self._on_render()
        return np.zeros((8, 8, 3), np.uint8)


class Events:
    """Stands where an `EventLog` is."""

    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.shown: dict[int, Gif] = {}

    def histograms(self, samples: Any, step: int) -> None:
        """Keeps the step."""
        self.sampled.append(step)

    def image(self, tag: str, gif: Gif, step: int) -> None:
        """Keeps the image."""
        self.shown[step] = gif


class Bench:
    """Evaluates on a clock that is set by hand.

    Args:
        directory: of the run.
        make: makes environments.
        video_every: see `Pictures`.
    """

    def __init__(
        self, directory: Path, make: Callable[[], gym.Env] = DrawnEnv, video_every: int = 0
    ) -> None:
        self.now = 1000.0
        self.events = Events()
        self.made: list[Any] = []

        def make_env(index: int, test: bool) -> gym.Env:
            self.made.append(make())
            return self.made[-1]

        first = make_env(0, True)
        self.evaluator = Evaluator(make_agent(first), make_env, 3, first=first)
        self.pictures: Pictures = make_pictures(
            directory, self.evaluator, make_env, first, video_every, lambda: self.now, LOGGER
        )

    def evaluate(self, step: int, at: float, **settings: Any) -> None:
        """An evaluation and its pictures, `at` seconds after the start."""
        self.now = 1000.0 + at
        last = settings.get("last", False)
        self.evaluator.run(number=step, observer=self.pictures.begin(last))
        self.pictures.write_sample(self.events, step)  # type: ignore[arg-type]
        self.pictures.make(self.events, step, **settings)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """One with environments that draw themselves."""
    made = Bench(tmp_path)
    yield made
    made.evaluator.close()


def test_when(bench: Bench) -> None:
    """Samples at once, episodes later, both less and less often; the last agent is shown anyway."""
    times = [0, 0.5, 2, EPISODE_PAUSE, 80, 121, 900, 950, 1000, 1080, 1081]
    for i, at in enumerate(times):
        bench.evaluate(i, at, last=i == len(times) - 1)
    assert bench.events.sampled == [0, 2, 3, 4, 5, 6, 8, 10]
    assert list(bench.events.shown) == [3, 5, 6, 8, 10]


def test_what_costs_much_is_made_rarely(tmp_path: Path) -> None:
    """So that it takes one percent of the time."""

    def spend() -> None:
        bench.now += 0.2  # five times an episode

    bench = Bench(tmp_path, lambda: DrawnEnv(on_render=spend))
    for step in range(0, 300, 10):
        bench.evaluate(step, step)
    assert list(bench.events.shown) == [60, 170, 280]


def test_the_last_agent_is_shown_once(bench: Bench) -> None:
    """Also where the last evaluation came before the end."""
    bench.evaluate(7, 70)
    bench.pictures.make(bench.events, 7, last=True)  # type: ignore[arg-type]
    assert bench.events.sampled == [7]
    bench.pictures.make(bench.events, 9, last=True)  # type: ignore[arg-type]
    assert list(bench.events.shown) == [7, 9]
    assert bench.events.sampled == [7]
    assert len(bench.made) == 1 + 2


def test_an_environment_for_each_episode(bench: Bench) -> None:
    """It is played once, for one episode, and closed."""
    bench.evaluate(1, 70)
    first, shown = bench.made
    assert not first.closed
    assert shown.closed
    assert len(shown.history) == 5
    bench.evaluate(2, 5000)
    assert len(bench.made) == 3


def test_stopping_leaves_no_picture(bench: Bench) -> None:
    """It is broken off at the next step."""
    asked = iter([False, False])
    bench.evaluate(1, 70, should_stop=lambda: next(asked, True))
    assert not bench.events.shown
    assert len(bench.made[1].history) == 2
    assert bench.made[1].closed


def test_long_episodes_are_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been played until then is shown."""
    monkeypatch.setattr(pictures, "SECONDS", 0.1)

    def spend() -> None:
        bench.now += 0.03

    endless = DrawnEnv(on_step=spend, rewards=(1.0,) * 8)
    bench.pictures.player = Evaluator(bench.evaluator.agent, lambda index, test: endless, 1)
    bench.evaluate(1, 70)
    assert 1 in bench.events.shown
    assert 0 < len(endless.history) < 8


def test_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, and no more episodes; what is sampled goes on."""

    def fail() -> None:
        raise OSError("no paper")

    bench = Bench(tmp_path, lambda: DrawnEnv(on_render=fail))
    for step, at in ((1, 70), (2, 500), (3, 5000)):
        bench.evaluate(step, at, last=step == 3)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "OSError('no paper')" in warnings[0]
    assert bench.events.sampled == [1, 2, 3]
    assert not bench.events.shown
    assert len(bench.made) == 2
    assert bench.made[1].closed


def test_no_drawing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, as an information; no environment is made for it."""
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, KnownEnv)
    bench.evaluate(1, 70)
    bench.evaluate(2, 5000, last=True)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "no episodes are shown: KnownEnv does not draw itself as an array")
    ]
    assert bench.events.sampled == [1, 2]
    assert len(bench.made) == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5"])
def test_registered_environments_draw(
    tmp_path: Path, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a screen, and though the ones that evaluate do not draw."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "")
    monkeypatch.setattr(pictures, "SECONDS", 0.5)
    make_env = RegisteredEnv(env_id)
    env = make_env(0, True)
    nets = {"network": "paper_cnn"} if make_env.atari else {}
    evaluator = Evaluator(make_agent(env, nets=nets), make_env, 1, first=env)
    made = make_pictures(tmp_path, evaluator, make_env, env, 0, lambda: 0.0, LOGGER)
    events = Events()
    made.make(events, 1, last=True)  # type: ignore[arg-type]
    assert (events.shown[1].width, events.shown[1].height) in [(200, 134), (160, 210)]
    evaluator.close()


def test_run_with_broken_drawing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It ends as it would have."""

    def fail() -> None:
        raise RuntimeError("no paper")

    agent = make_agent(DrawnEnv())
    settings: dict[str, Any] = {"agent": agent, "steps": 300, "eval_interval": 100}
    train_agent_async(tmp_path, 1, lambda index, test: DrawnEnv(on_render=fail), **settings)
    assert json.loads((tmp_path / "summary.json").read_text())["stopped_by"] == "steps"
    assert [r.getMessage() for r in caplog.records if r.levelname != "INFO"] == [
        "no more episodes are shown, since one has failed: RuntimeError('no paper')"
    ]


def test_distributions_are_of_the_step_that_was_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the evaluation that ends a run, from which the workers have gone on."""
    steps: list[int] = []
    monkeypatch.setattr(EventLog, "histograms", lambda log, samples, step: steps.append(step))
    train_agent_async(
        tmp_path,
        1,
        lambda index, test: DrawnEnv(on_step=lambda: sleep(0.001)),
        agent=make_agent(DrawnEnv()),
        steps=10**6,
        eval_interval=50,
        successful_score=-1e9,
    )
    rows = (tmp_path / "scores.txt").read_text().splitlines()[1:]
    assert steps == [int(row.split("\t")[0]) for row in rows]
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] > steps[-1]


# Videos -----------------------------------------------------------------------------------------


def test_videos(tmp_path: Path) -> None:
    """After every so manieth evaluation and at the end, besides the animations."""
    pytest.importorskip("imageio_ffmpeg")
    bench = Bench(tmp_path, video_every=2)
    for step in range(1, 6):
        bench.evaluate(step, step, last=step == 5)
    assert sorted(p.name for p in (tmp_path / "videos").iterdir()) == ["2.mp4", "4.mp4", "5.mp4"]
    assert list(bench.events.shown) == [5]


def test_videos_without_the_extra(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, and all but the videos is made."""
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    bench = Bench(tmp_path, video_every=1)
    bench.evaluate(1, 70)
    bench.evaluate(2, 5000)
    assert [r.getMessage() for r in caplog.records] == [
        "no videos: videos need: pip install 'a3c_tf[video]'"
    ]
    assert list(bench.events.shown) == [1, 2]
    assert not (tmp_path / "videos").exists()


def test_half_a_video_of_a_killed_program(tmp_path: Path) -> None:
    """It is removed when the run goes on."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / ".7.partial.mp4").touch()
    (tmp_path / "videos" / "5.mp4").touch()
    Bench(tmp_path)
    assert [p.name for p in (tmp_path / "videos").iterdir()] == ["5.mp4"]


# Samples ----------------------------------------------------------------------------------------


def sample_of(
    env: KnownEnv, episodes: int, value_of_episode: float = 0.0, **settings: Any
) -> dict[str, Any]:
    """What is sampled in an evaluation whose value of the state at step t is t.

    To which comes the number of the episode, times `value_of_episode`.
    """
    agent = make_agent(env, gamma=GAMMA, **settings)
    for weight in agent.model.weights:
        table = np.zeros(weight.shape, np.float32)
        if weight.shape == (STEP + MAX_LENGTH + 1, 1):
            table[1] = value_of_episode
            table[STEP:, 0] = range(MAX_LENGTH + 1)
        weight.assign(table)
    sample = Sample(agent, 1, lambda: 0.0)
    evaluator = Evaluator(agent, lambda index, test: env, episodes)
    evaluator.run(observer=sample.see)
    return sample.distributions()


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_sample(ending: Any) -> None:
    """Values and advantages by hand; the step that resets is left out; a truncation bootstraps."""
    env = KnownEnv(rewards=(1.0, 2.0, 4.0), ending=ending)
    found = sample_of(env, 2)
    later = [1.0, 2.0, 3.0 * (ending == "truncated")]
    advantages = [r + GAMMA * n - v for r, n, v in zip((1, 2, 4), later, range(3), strict=True)]
    assert found["eval/values"] == pytest.approx([0, 1, 2] * 2)
    assert found["eval/advantages"] == pytest.approx(advantages * 2)
    assert found["eval/actions"].tolist() == [step.action for step in env.history]


def test_sample_of_learned_rewards() -> None:
    """Advantages are in the units of what is learned."""
    found = sample_of(KnownEnv(rewards=(9.0,), ending="terminated"), 1, reward_clip=1.0)
    assert found["eval/advantages"] == pytest.approx([1.0])


def test_sample_is_bounded() -> None:
    """And spread over the whole evaluation."""
    env = KnownEnv(rewards=(0.0,) * 8)
    episodes = STEPS // 4
    found = sample_of(env, episodes, value_of_episode=1000.0)
    assert STEPS // 3 < len(found["eval/values"]) <= STEPS
    assert np.median(found["eval/values"]) / 1000 == pytest.approx(episodes / 2, rel=0.1)
    assert len(env.history) == 2 * STEPS


def test_agent_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actions are shown."""
    from a3c_tf.agents.a3c import A3CAgent
    from a3c_tf.agents.base import Agent

    monkeypatch.setattr(A3CAgent, "values", Agent.values)
    agent = make_agent(KnownEnv())
    sample = Sample(agent, 1, lambda: 0.0)
    Evaluator(agent, lambda index, test: KnownEnv(), 1).run(observer=sample.see)
    assert list(sample.distributions()) == ["eval/actions"]
