"""Every public name says what it takes, what it returns and what it raises."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import a3c_tf

# A first sentence that begins like this is about what is returned; one that begins with a verb is
# about what is done.
NAMES_THE_RESULT = r"(The|A|An|All|Those|What|Which|Whether|How|As)\b|\["


def _public() -> dict[str, tuple[Any, list[str]]]:
    """The names of `a3c_tf` and the methods of its classes, each with the docstrings on it.

    A method that overrides another one need not explain again what that one explains.
    """
    found: dict[str, tuple[Any, list[str]]] = {}
    for name in a3c_tf.__all__:
        thing = getattr(a3c_tf, name)
        if not inspect.isclass(thing):
            found[name] = thing, [_docstring(thing)]
            continue
        ours = [kind for kind in thing.__mro__ if kind.__module__.startswith("a3c_tf")]
        found[name] = thing, [_docstring(kind) for kind in ours]
        for kind in ours:
            for own, member in vars(kind).items():
                function = getattr(member, "__func__", member)
                public = own == "__call__" or not own.startswith("_")
                if public and inspect.isfunction(function):
                    above = [vars(k)[own] for k in ours[ours.index(kind) :] if own in vars(k)]
                    docstrings = [_docstring(function), *(_docstring(f) for f in above)]
                    found[f"{kind.__name__}.{own}"] = function, docstrings
    return found


def _docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _section(docstring: str, title: str) -> str:
    match = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)+)", docstring, re.MULTILINE)
    return textwrap.dedent(match[1]) if match else ""


def _explained(docstrings: list[str], title: str) -> set[str]:
    """The names that a section explains: `steps: of a run`, `act, env: seconds`."""
    text = "\n".join(_section(docstring, title) for docstring in docstrings)
    lines = re.findall(r"^([\w*][\w*, ]*):", text, re.MULTILINE)
    return {name.strip("* ") for line in lines for name in line.split(",")}


def _raised(function: Any) -> set[str]:
    """The errors that a function's own body raises by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {
        call.func.id
        for call in made
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }


PUBLIC = _public()
METHODS = [name for name, (thing, _) in PUBLIC.items() if not inspect.isclass(thing)]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name: str) -> None:
    """There is one, and it begins with a sentence."""
    first, *_ = PUBLIC[name][1][0].split("\n\n")
    assert re.search(r"[.:]$", first)


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments(name: str) -> None:
    """Each is explained by its name; those of a dataclass are its attributes."""
    thing, docstrings = PUBLIC[name]
    if is_dataclass(thing):
        needed = {field.name for field in fields(thing)}
        assert _explained(docstrings, "Attributes") == needed
        return
    inherited = inspect.isclass(thing) and "__init__" not in vars(thing)
    taken = set() if inherited else set(inspect.signature(thing).parameters)
    explained = _explained(docstrings[:1] if inspect.isclass(thing) else docstrings, "Args")
    assert explained == taken - {"self", "cls"}


@pytest.mark.parametrize("name", METHODS)
def test_returned(name: str) -> None:
    """What comes back stands under "Returns:", or is what the first sentence names."""
    function, docstrings = PUBLIC[name]
    if inspect.signature(function).return_annotation in ("None", "object"):
        return
    said = any(_section(docstring, "Returns") for docstring in docstrings)
    assert said or re.match(NAMES_THE_RESULT, docstrings[0])


@pytest.mark.parametrize("name", PUBLIC)
def test_errors(name: str) -> None:
    """What the body itself raises is named under "Raises:"."""
    thing, docstrings = PUBLIC[name]
    function = vars(thing).get("__init__") if inspect.isclass(thing) else thing
    if function is not None and not is_dataclass(thing):
        assert _raised(function) <= _explained(docstrings, "Raises")
