"""What the documents name is there, what they say to type can be typed, and what they show runs."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tyro

from a3c_tf import cli, settings
from a3c_tf.config import TrainConfig

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUNING = ROOT / "docs" / "tuning.md"
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)

# Other commands than the project's own, and with what they may begin.
OTHERS = (
    r"pip install (-e )?'?[\w.\[\]-]+'?",
    r"pytest( -n 0)?( -s)?( -m slow)?( [\w/]+\.py)?",
    r"tensorboard --logdir [\w./-]+",
    r"export \w+=\w+",
)


@each_document
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


# Links --------------------------------------------------------------------------------------


@each_document
def test_relative_links(document: Path) -> None:
    """They lead to a file or a directory, and an anchor to a heading in it."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)]+)?\)", _prose(document)):
        if "://" in target:
            continue
        file = document.parent / target if target else document
        assert file.exists(), target
        assert not anchor or anchor[1:] in _anchors(file), f"{target}{anchor}"


@each_document
def test_named_code(document: Path) -> None:
    """A link with the name of a function or class leads to the file that defines it."""
    for name, target in re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", _prose(document)):
        if "." in name and name.endswith(".py"):
            continue
        tree: ast.AST = ast.parse((document.parent / target).read_text())
        for part in name.split("."):
            tree = _defined(tree, part)


def _defined(tree: ast.AST, name: str) -> ast.AST:
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "name", None) == name:
            return node
    raise AssertionError(f"{name} is not defined there")


BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(document: Path, language: str) -> str:
    """A document's blocks of code in a language, "" for those that name none."""
    blocks = BLOCK.findall(document.read_text())
    return "\n\n".join(text for named, text in blocks if named == language)


def _prose(document: Path) -> str:
    """A document without its blocks of code."""
    return BLOCK.sub("", document.read_text())


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


# Commands -----------------------------------------------------------------------------------


class ParsedError(Exception):
    """Raised in place of what a command does once its flags have been understood."""


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets commands get no further than to their settings, whatever run they name."""
    parse = tyro.cli

    def cli_and_no_more(*arguments: Any, **named: Any) -> Any:
        config = parse(*arguments, **named)
        if isinstance(config, TrainConfig):
            config.validate()
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", cli_and_no_more)
    monkeypatch.setattr(cli, "main", lambda run: run(sys.argv[1:]))  # signals are left alone
    monkeypatch.setattr(settings, "read_config", lambda path: TrainConfig().to_dict())


@each_document
@pytest.mark.usefixtures("only_parse")
def test_commands(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command in a block of code has flags that its program knows."""
    for words in _commands(document):
        if words[0] == "python":
            script, *arguments = words[1:]
            assert (ROOT / script).is_file(), script
            _run_as_far_as_the_flags(script, arguments, monkeypatch)
        elif words[0] == "a3c-tf":
            _run_as_far_as_the_flags("a3c-tf", words[1:], monkeypatch)
        else:
            line = shlex.join(words)
            assert any(re.fullmatch(pattern, line) for pattern in OTHERS), line


def _commands(document: Path) -> Iterator[list[str]]:
    """Those of blocks without a language, split into words; comments are left out."""
    for line in _blocks(document, "").replace("\\\n", " ").splitlines():
        for command in re.split(r" && | \| ", line):
            words = shlex.split(command, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):  # variables of the environment
                words.pop(0)
            if words:
                yield words


def _run_as_far_as_the_flags(
    program: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    if program != "a3c-tf":
        monkeypatch.syspath_prepend(ROOT / "scripts")  # as Python does it for a script
        with pytest.raises(ParsedError):
            runpy.run_path(str(ROOT / program), run_name="__main__")
    elif arguments[:1] == ["--help"]:
        assert cli.dispatch(arguments) == 0
    else:
        with pytest.raises(ParsedError):
            cli.dispatch(arguments)


@each_document
def test_flags(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that the text names is one of some command."""
    named = set(re.findall(r"`(--[a-z][a-z-]*)[^`]*`", _prose(document)))
    if not named:
        return
    known = {"--help"}
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.command(command)(["--help"])
        known |= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert named <= known | {"--no-", "--logdir", "--samples"}  # TensorBoard's own


# Settings -----------------------------------------------------------------------------------


def _settings_table() -> dict[str, tuple[str, str]]:
    """Default and explanation by setting, of all tables in tuning.md."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", TUNING.read_text(), re.MULTILINE)
    table = {name: (default, text) for name, default, text in rows}
    assert len(table) == len(rows)
    return table


def test_every_setting_is_explained() -> None:
    """And none that does not exist."""
    assert set(_settings_table()) == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize("field", fields(TrainConfig), ids=lambda field: field.name)
def test_setting(field: Any) -> None:
    """Its default is that of `TrainConfig`, and all that it may be is named."""
    default, text = _settings_table()[field.name]
    if field.name == "workers":
        assert default == "one for each core"
        return
    expected = field.default_factory() if field.default is MISSING else field.default
    if isinstance(expected, str):
        assert default == f"`{expected}`"
    else:
        assert ast.literal_eval(default.strip("`")) == expected
    kind = get_type_hints(TrainConfig)[field.name]
    for choice in get_args(kind) if get_origin(kind) is Literal else ():
        assert f"`{choice}`" in text


# Messages -----------------------------------------------------------------------------------


def test_messages() -> None:
    """What troubleshooting.md quotes with `...` in it is what the package says."""
    templates = {text for path in (ROOT / "a3c_tf").rglob("*.py") for text in _texts(path)}
    quoted = re.findall(r"`([^`\n]*\.\.\.[^`\n]*)`", _prose(ROOT / "docs" / "troubleshooting.md"))
    assert len(quoted) > 30
    for message in quoted:
        assert any(message in template for template in templates), message


def _texts(path: Path) -> Iterator[str]:
    """All texts in a file; `...` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "..." for v in node.values)
            yield re.sub(r"(\.\.\.)+(?!\w)", "...", "".join(str(part) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[dsr]", "...", node.value)


# Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document", [ROOT / "README.md", ROOT / "docs" / "extending.md"], ids=lambda path: path.name
)
def test_python_blocks_run(document: Path, tmp_path: Path) -> None:
    """All of a document's, one after the other, as one program, with few steps."""
    program, numbers = re.subn(
        r"\b(steps|STEPS|eval_interval)( ?= ?)[\d_]+", r"\1\g<2>400", _blocks(document, "python")
    )
    assert numbers
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
