"""Curves: which runs are one line, where it is, and what the legend says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from a3c_tf.commands.plot import plot as plot_command
from a3c_tf.plotting import draw_curves
from a3c_tf.runs import load_runs
from tests.helpers import write_run


def panels(figure: Figure) -> list[Axes]:
    """Two for each environment."""
    return [axes for part in figure.subfigs for axes in part.axes]


def legend(figure: Figure, row: int = 0) -> list[str]:
    """The texts of an environment's legend."""
    (found,) = figure.subfigs[row].legends
    return [text.get_text().replace("\n", " ") for text in found.get_texts()]


def lines(axes: Axes, thick: bool = True) -> list[Line2D]:
    """The groups' lines, or those of each run."""
    return [line for line in axes.get_lines() if (line.get_linewidth() > 1) == thick]


def points(line: Line2D) -> list[tuple[float, float]]:
    """Of a line."""
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def band(axes: Axes) -> dict[float, tuple[float, float]]:
    """The lower and the upper edge of the only band, by x."""
    (collection,) = axes.collections
    (path,) = collection.get_paths()
    edges: dict[float, tuple[float, float]] = {}
    for x in np.unique(path.vertices[:, 0]):
        at = path.vertices[path.vertices[:, 0] == x, 1]
        edges[float(x)] = (float(at.min()), float(at.max()))
    return edges


def test_mean_and_spread_of_seeds(tmp_path: Path) -> None:
    """One line for equal settings, at all steps that all of them reach; each run is a thin one."""
    write_run(tmp_path / "a", [10, 20, 30], seed=0)
    write_run(tmp_path / "b", [14, 26], seed=1)
    steps, minutes = panels(draw_curves(load_runs(tmp_path)))
    (line,) = lines(steps)
    assert points(line) == [(1000, 12), (2000, 23)]
    assert [points(thin) for thin in lines(steps, thick=False)] == [
        [(1000, 10), (2000, 20), (3000, 30)],
        [(1000, 14), (2000, 26)],
    ]
    assert points(lines(minutes)[0]) == [(1, 12), (2, 23)]
    spread = 8**0.5  # of 10 and 14
    assert band(steps)[1000] == pytest.approx((12 - spread, 12 + spread))


def test_evaluations_at_different_steps(tmp_path: Path) -> None:
    """Between two evaluations a curve is straight; before the first and after the last is none."""
    write_run(tmp_path / "a", [10, 20, 30], seed=0, interval=1000)
    write_run(tmp_path / "b", [0, 10], seed=1, interval=1500)
    steps, _ = panels(draw_curves(load_runs(tmp_path)))
    expected = [(1500, 15 / 2), (2000, (20 + 10 / 3) / 2), (3000, 20)]
    np.testing.assert_allclose(points(lines(steps)[0]), expected)


def test_one_seed(tmp_path: Path) -> None:
    """Its band is the spread of the episodes of an evaluation."""
    write_run(tmp_path / "a", [10, 20])
    figure = draw_curves(load_runs(tmp_path))
    steps, _ = panels(figure)
    assert points(lines(steps)[0]) == [(1000, 10), (2000, 20)]
    assert not lines(steps, thick=False)
    assert band(steps) == {1000: (9.5, 10.5), 2000: (19.5, 20.5)}
    assert legend(figure) == ["1 seed, band ± standard deviation of an evaluation's episodes"]


def test_single_evaluations(tmp_path: Path) -> None:
    """Runs with nothing in common are there all the same, as points."""
    write_run(tmp_path / "a", [10], seed=0, interval=1000)
    write_run(tmp_path / "b", [20], seed=1, interval=1001)
    steps, _ = panels(draw_curves(load_runs(tmp_path)))
    assert points(lines(steps)[0]) == []
    assert [points(thin) for thin in lines(steps, thick=False)] == [[(1000, 10)], [(1001, 20)]]
    assert all(thin.get_marker() == "o" for thin in lines(steps, thick=False))


def test_evaluations_at_the_same_time(tmp_path: Path) -> None:
    """The later one counts."""
    for seed in (0, 1):
        scores = write_run(tmp_path / str(seed), [10, 20, 30], seed=seed) / "scores.txt"
        scores.write_text(scores.read_text().replace("\t120.0\t", "\t60.0\t"))
    steps, minutes = panels(draw_curves(load_runs(tmp_path)))
    assert points(lines(minutes)[0]) == [(1, 20), (3, 30)]
    assert points(lines(steps)[0]) == [(1000, 10), (2000, 20), (3000, 30)]


def test_groups(tmp_path: Path) -> None:
    """Settings that differ are named, and how many seeds there are; runs of one seed are runs."""
    for seed in range(3):
        write_run(tmp_path / "a" / str(seed), [10, 20], seed=seed, t_max=5)
        write_run(tmp_path / "b" / str(seed), [10, 20], seed=7, t_max=20)
    write_run(tmp_path / "c", [10, 20], seed=1, t_max=32)
    assert legend(draw_curves(load_runs(tmp_path))) == [
        "t_max=5: mean of 3 seeds, band ± their standard deviation",
        "t_max=20: mean of 3 runs, band ± their standard deviation",
        "t_max=32: 1 seed, band ± standard deviation of an evaluation's episodes",
        "each run; the mean goes as far as all of them do",
    ]


def test_a_row_for_each_environment(tmp_path: Path) -> None:
    """With a title, a legend and settings of its own, and axes that say what they show."""
    write_run(tmp_path / "a", [10, 20], t_max=5)
    write_run(tmp_path / "b", [10, 20], t_max=7)
    write_run(tmp_path / "c", [-500, -100], env="Acrobot-v1", t_max=32)
    figure = draw_curves(load_runs(tmp_path))
    assert [part.get_suptitle() for part in figure.subfigs] == ["CartPole-v1", "Acrobot-v1"]
    assert [text.split(":")[0] for text in legend(figure, 0)] == ["t_max=5", "t_max=7"]
    assert legend(figure, 1)[0].startswith("1 seed, band")
    for steps, minutes in (panels(figure)[:2], panels(figure)[2:]):
        assert steps.get_xlabel() == "environment steps (of all workers)"
        assert minutes.get_xlabel() == "training time (minutes)"
        assert steps.get_ylabel() == "episode return (mean of an evaluation)"
        assert steps.get_xlim()[0] == minutes.get_xlim()[0] == 0
        assert steps.get_shared_y_axes().joined(steps, minutes)


def test_runs_without_settings(tmp_path: Path) -> None:
    """Each is a line of its own, by its directory."""
    for name in ("a", "b"):
        (write_run(tmp_path / name, [10, 20]) / "config.yaml").unlink()
    figure = draw_curves(load_runs(tmp_path))
    assert figure.subfigs[0].get_suptitle() == "environment not known: no config.yaml"
    assert [text.split(":")[0] for text in legend(figure)] == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]
    assert legend(figure)[0].endswith(
        ": 1 run, band ± standard deviation of an evaluation's episodes"
    )


def test_black_and_white(tmp_path: Path) -> None:
    """Lines differ in more than their colour, on both panels alike; so do many groups."""
    for t_max in range(1, 17):
        write_run(tmp_path / str(t_max), [10, 20], t_max=t_max)
    steps, minutes = panels(draw_curves(load_runs(tmp_path)))

    def looks(axes: Axes) -> list[tuple[Any, ...]]:
        return [(line.get_linestyle(), line.get_marker()) for line in lines(axes)]

    assert len(set(looks(steps))) == 16
    assert looks(steps) == looks(minutes)
    colours = [to_hex(line.get_color()) for line in lines(steps)]
    assert len(set(colours[:7])) == 7


@pytest.mark.parametrize("value", ["$", "$x$", "x" * 300])
def test_any_text_can_be_drawn(tmp_path: Path, value: str) -> None:
    """A formula is not meant; the text stays within the picture."""
    for name, arguments in {"a": {"name": value}, "b": {}}.items():
        write_run(tmp_path / name, [10, 20], env=f"$x_{{y$-{value[:9]}", env_args=arguments)
    figure = draw_curves(load_runs(tmp_path))
    figure.savefig(tmp_path / "a.png")
    (found,) = figure.subfigs[0].legends
    box = found.get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.bbox.x1
    text = legend(figure)[0].replace(" ", "")
    assert value in text.replace(r"\$", "$")
    assert "$" not in text.replace(r"\$", "")


# The command ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test's directory."""
    monkeypatch.chdir(tmp_path)


def test_where_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Into the one directory that is named; here, if there are several; or as told."""
    write_run(Path("runs/a"), [10, 20])
    write_run(Path("runs/b"), [10, 20])
    for arguments, file in (
        ([], "runs/curves.png"),
        (["runs/a"], "runs/a/curves.png"),
        (["runs/a", "runs/b"], "curves.png"),
        (["runs/a", "runs", "--out", "x.PNG"], "x.PNG"),
        (["runs/a", "--out", "x.svg"], "x.svg"),
    ):
        assert plot_command(arguments) == 0
        assert capsys.readouterr() == (f"curves: {file}\n", "")
    for file in ("runs/curves.png", "x.PNG"):
        picture = imread(file, format="png")
        assert picture.shape[0] > 500
        assert picture[..., :3].std() > 0.05
    assert "<svg" in Path("x.svg").read_text()


def test_runs_without_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    """They are left out, which is said; if there is no other, it is an error."""
    write_run(Path("a"), [10, 20])
    write_run(Path("b"))
    assert plot_command(["a", "b"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "left out, without an evaluation: b",
        "curves: curves.png",
    ]
    assert plot_command(["b"]) == 2
    assert capsys.readouterr() == ("", "error: no evaluation yet in b\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run", "run is no directory (near: runs)"),
        ("x" * 300, f"{'x' * 300}: File name too long"),
        ("runs --out x.jpg", "--out is x.jpg; it must end in .png or .svg"),
        ("runs --out png", "--out is png; it must end in .png or .svg"),
        ("runs --out no/x.png", "--out no/x.png cannot be written: No such file or directory"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    """One line and code 2."""
    write_run(Path("runs/a"), [10, 20])
    assert plot_command(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_too_many_environments(capsys: pytest.CaptureFixture[str]) -> None:
    """They would take minutes."""
    for number in range(41):
        write_run(Path(f"runs/{number}"), [10], env=f"env{number}")
    assert plot_command(["runs"]) == 2
    error = "error: RUN holds runs of 41 environments; name runs of at most 40\n"
    assert capsys.readouterr() == ("", error)


@pytest.mark.parametrize("package", ["pandas", "matplotlib.axes"])
def test_without_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """One line that says how to install it."""
    write_run(Path("runs/a"), [10, 20])
    monkeypatch.delitem(sys.modules, "a3c_tf.plotting")
    monkeypatch.setitem(sys.modules, package, None)
    assert plot_command([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: plot needs matplotlib and pandas (import of {package} halted")
    assert err.endswith("pip install 'a3c_tf[plot]'\n")
