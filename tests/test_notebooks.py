"""The notebooks: they run from top to bottom, and what is committed is what a run leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LIMIT_SECONDS = 240  # for one of them; alone on two cores none takes more than a minute
LIMIT_BYTES = 500_000
MACHINE_PATH = re.compile(r"(?<![\w.-])(?:/(?:home|root|Users|tmp|var|private)/|[A-Z]:\\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(notebook: Any) -> Iterator[Any]:
    """All outputs of all cells."""
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def texts(notebook: Any) -> Iterator[str]:
    """All that can be read in it: cells, and outputs but for pictures."""
    for cell in notebook.cells:
        yield cell.source
    for output in outputs(notebook):
        data = {"": output.get("text", ""), **output.get("data", {})}
        yield from (str(value) for kind, value in data.items() if not kind.startswith("image/"))


def assert_clean(notebook: Any) -> None:
    """No error and no warning."""
    for output in outputs(notebook):
        assert output.output_type != "error", output.evalue
        assert output.get("name") != "stderr", output.text


def test_all_are_found() -> None:
    """Five of them."""
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@each_notebook
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in time, and in a directory of its own, without a warning."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's own start-up files
    notebook = nbformat.read(path, as_version=4)
    deadline = monotonic() + LIMIT_SECONDS
    NotebookClient(
        notebook,
        timeout_func=lambda cell: max(1, int(deadline - monotonic())),
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()  # raises what a cell has raised
    assert_clean(notebook)


@each_notebook
def test_committed_outputs(path: Path) -> None:
    """Every cell has been run once, in order, without an error; small, and of no one machine."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert_clean(notebook)
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    for text in texts(notebook):
        assert not MACHINE_PATH.search(text), text
    assert path.stat().st_size < LIMIT_BYTES


@each_notebook
def test_text(path: Path) -> None:
    """A title at the top, exercises at the end."""
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.startswith("# ")
    assert "## Exercises" in cells[-1].source
