"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests(document: Path) -> None:
    """Every `test_file.py::test_name`, also where the file is left out because it is the same."""
    file = None
    for cell in re.findall(r"`([^`\n]+)`", document.read_text()):
        match = re.fullmatch(r"(?:tests/)?(test_\w+\.py)::(test_\w+)", cell)
        if match:
            file, name = ROOT / "tests" / match[1], match[2]
        elif re.fullmatch(r"test_\w+", cell) and file:
            name = cell
        else:
            continue
        assert re.search(rf"^def {name}\(", file.read_text(), re.MULTILINE), f"{file.name}::{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links(document: Path) -> None:
    """They lead to a file or a directory."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target
