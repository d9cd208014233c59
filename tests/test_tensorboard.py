"""A real TensorBoard server, asked for what its pages ask for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from a3c_tf.agents.n_step_q import NStepQAgent, NStepQHyperparameters

ROOT = Path(__file__).parent.parent
CARTPOLE, PONG = "CartPole-v1", "Pong"
RUNS = {CARTPOLE: "CartPole-v1", PONG: "ALE/Pong-v5"}
SIZES = {CARTPOLE: (200, 134), PONG: (160, 210)}  # of an episode's picture: width, height
ACTIONS = {CARTPOLE: 2, PONG: 6}
STEPS, MORE_STEPS = 3000, 5000
START_SECONDS = 120.0


def train(directory: Path, env: str, steps: int, *flags: str) -> None:
    """By the script, evaluated every 1000 steps."""
    program = [sys.executable, str(ROOT / "scripts/train.py"), "--workers", "2"]
    settings = ["--steps", str(steps), "--eval-interval", "1000", "--eval-episodes", "2"]
    # One environment a worker, for whole games of Pong are among so few steps then.
    goal = ["--env", env, "--outdir", str(directory), "--envs-per-worker", "1"]
    subprocess.run([*program, *settings, *(flags or goal)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of CartPole and of an Atari game, the first one resumed."""
    directory: Path = tmp_path_factory.mktemp("runs")
    for name, env in RUNS.items():
        train(directory / name, env, STEPS)
    train(directory / CARTPOLE, RUNS[CARTPOLE], MORE_STEPS, "--resume", str(directory / CARTPOLE))
    return directory


class Server:
    """TensorBoard's data routes."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, route: str, **query: Any) -> Any:
        """What a route says, as JSON."""
        with self.open(f"{route}?{urlencode(query, quote_via=quote)}") as answer:
            return json.load(answer)

    def post(self, route: str, body: Any) -> Any:
        """The same for a route that is told something."""
        with self.open(route, json.dumps(body).encode()) as answer:
            return json.load(answer)

    def open(self, route: str, body: bytes | None = None) -> Any:
        """The answer itself."""
        headers = {"Content-Type": "application/json"} if body else {}
        return urlopen(Request(f"{self._url}data/{route}", body, headers), timeout=30)


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast loading", "slow loading"])
def server(logdir: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that has read both runs, with each of TensorBoard's two ways to read."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
    log = logdir.parent / f"log-{request.param}.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--load_fast", request.param],
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            started = re.search(r"at (http://\S+/)", log.read_text())
            if started and _is_read(Server(started[1])):
                break
            time.sleep(0.2)
        else:
            raise AssertionError(log.read_text())
        yield Server(started[1])
    finally:
        process.terminate()
        process.wait(30)


def _is_read(server: Server) -> bool:
    """Whether the last thing that each run has written is there."""
    images = server.get("plugin/images/tags")
    return all("eval/episode" in images.get(name, {}) for name in RUNS) and (
        _series(server, "eval/mean", CARTPOLE)[-1][1] >= MORE_STEPS
    )


def _series(server: Server, tag: str, run: str) -> list[list[float]]:
    series: list[list[float]] = server.get("plugin/scalars/scalars", tag=tag, run=run)
    return series


def _tags(server: Server, run: str) -> set[str]:
    plugins = ("scalars", "histograms", "images")
    tags = {tag for plugin in plugins for tag in server.get(f"plugin/{plugin}/tags").get(run, {})}
    return tags | set(server.get("plugin/text/tags")[run])


def _documented() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize("run", RUNS)
def test_every_tag_is_documented(server: Server, run: str) -> None:
    """And what is documented is there, but for what only other agents and accidents write."""
    written = {re.sub(r"workers/\d+", "workers/<i>", tag) for tag in _tags(server, run)}
    schedules = NStepQHyperparameters().schedules()
    others = {*NStepQAgent.statistics, *(f"train/{name}" for name in schedules), "error"}
    assert written <= _documented()
    assert _documented() <= written | others


@pytest.mark.parametrize("run", RUNS)
def test_scalars(server: Server, run: str) -> None:
    """Finite, with rising steps, over the whole run, also after a resume."""
    steps = MORE_STEPS if run == CARTPOLE else STEPS
    for tag in server.get("plugin/scalars/tags")[run]:
        series = _series(server, tag, run)
        assert np.isfinite(series).all(), tag
        times, at, _ = zip(*series, strict=True)
        assert list(at) == sorted(at), tag
        assert list(times) == sorted(times), tag
        assert at[-1] >= 0.7 * steps, tag


def test_hparams(server: Server) -> None:
    """A row a run, sorted by the final score, with the settings."""
    experiment = server.post("plugin/hparams/experiment", {"experimentName": ""})
    differs = {column["name"]: column["differs"] for column in experiment["hparamInfos"]}
    assert differs["learning_rate"]
    assert not differs["gamma"]
    metric = {"tag": "eval/mean", "group": ""}
    assert [info["name"] for info in experiment["metricInfos"]] == [metric]
    order = {"metric": metric, "order": "ORDER_DESC"}
    rows = server.post(
        "plugin/hparams/session_groups",
        {
            "startIndex": 0,
            "sliceSize": 9,
            "allowedStatuses": ["STATUS_UNKNOWN"],
            "colParams": [order],
        },
    )["sessionGroups"]
    final = {run: _series(server, "eval/mean", run)[-1][2] for run in RUNS}
    names = [row["name"].split("/")[-1] for row in rows]
    assert names == sorted(RUNS, key=lambda run: -final[run])
    for row, run in zip(rows, names, strict=True):
        assert row["metricValues"][0]["value"] == final[run]
        assert row["hparams"]["seed"] == 0
    settings = dict(zip(names, (row["hparams"] for row in rows), strict=True))
    assert settings["CartPole-v1"]["hidden_sizes"] == "[64, 64]"
    assert settings["CartPole-v1"]["env"] == "CartPole-v1"
    assert settings[PONG]["shared_trunk"]
    assert settings[PONG]["env"] == "ALE/Pong-v5"


def test_layout(server: Server) -> None:
    """Every chart of the page has something to show."""
    categories = server.get("plugin/custom_scalars/layout")["category"]
    charts = [chart for category in categories for chart in category["chart"]]
    assert len(charts) >= 10
    for chart in charts:
        for expression in chart.get("multiline", {}).get("tag", []):
            query = {"tag": expression, "run": CARTPOLE}
            found = server.get("plugin/custom_scalars/scalars", **query)["tag_to_events"]
            assert found, expression
        for series in chart.get("margin", {}).get("series", []):
            assert set(series.values()) <= set(server.get("plugin/scalars/tags")[CARTPOLE])


@pytest.mark.parametrize(("run", "size"), SIZES.items())
def test_episode(server: Server, run: str, size: tuple[int, int]) -> None:
    """It is served as a GIF, which moves."""
    last = server.get("plugin/images/images", run=run, tag="eval/episode", sample=0)[-1]
    with server.open(f"plugin/images/individualImage?{last['query']}") as answer:
        assert answer.headers["Content-Type"] == "image/gif"
        image = Image.open(BytesIO(answer.read()))
    assert image.size == size
    frames = []
    for index in range(image.n_frames):
        image.seek(index)
        frames.append(np.asarray(image.convert("RGB")))
    assert len(frames) > 5
    assert any((frames[0] != frame).any() for frame in frames)


@pytest.mark.parametrize("run", RUNS)
def test_histograms(server: Server, run: str) -> None:
    """Of actions, values and advantages; buckets are (left, right, count)."""
    for tag in ("eval/actions", "eval/values", "eval/advantages"):
        for _, _, buckets in server.get("plugin/histograms/histograms", run=run, tag=tag):
            assert sum(count for _, _, count in buckets) > 20
            assert np.isfinite(buckets).all()
            if tag == "eval/actions":
                assert {np.floor(b[1]) for b in buckets if b[2]} <= {*range(ACTIONS[run])}


def test_settings(server: Server) -> None:
    """As a text, anew at a resume, with what is different."""
    texts = [text["text"] for text in server.get("plugin/text/text", run=CARTPOLE, tag="settings")]
    assert [f"<code>{steps}</code>" in text for text in texts for steps in (STEPS, MORE_STEPS)] == [
        *(True, False),
        *(False, True),
    ]
