"""Imports go downward only, by the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "architecture.md").read_text().split("\n## Imports\n")[1]
ORDER = re.findall(r"\]\(\.\./(a3c_tf/[\w/]+\.py)\)", TABLE)
FILES = [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "a3c_tf").rglob("*.py"))
    if path.name != "__init__.py"
]


def imported(file: str) -> set[str]:
    """The files of the package that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse((ROOT / file).read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {path for name in names if (path := name.replace(".", "/") + ".py") in FILES}


def test_table() -> None:
    """Every file of the package is in it once."""
    assert sorted(ORDER) == sorted(FILES)


@pytest.mark.parametrize("file", FILES)
def test_downward(file: str) -> None:
    """What a file imports comes after it."""
    below = ORDER[ORDER.index(file) + 1 :]
    assert imported(file) <= set(below)


@pytest.mark.parametrize("module", ["config", "settings", "envs.factory", "commands.train"])
def test_without_tensorflow(module: str) -> None:
    """What looks at the flags does not import it."""
    program = f"import sys, a3c_tf.{module}; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
