"""The command `a3c-tf`, and what the programs in `scripts/` share with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from rich.console import Console

from a3c_tf.commands.output import INTERRUPTED, OK, TERMINATED, answer, show, usage
from a3c_tf.errors import ConfigError, near
from a3c_tf.signals import RaiseOnce, Terminated

COMMANDS = {
    "train": "train an agent, or go on with a run",
    "evaluate": "score a saved agent on whole episodes",
    "runs": "list runs: settings, scores, what ended them",
    "plot": "draw the scores of runs against steps and minutes",
    "export": "write a saved agent's policy as Keras, SavedModel, TensorFlow Lite or ONNX",
    "watch": "watch a saved agent play, in a window or in a file",
    "benchmark": "measure the trainer: steps a second and CPU time a step",
}

HELP = """usage: a3c-tf COMMAND [--help] ...

{commands}

Each command explains its settings: a3c-tf COMMAND --help"""


def dispatch(arguments: Sequence[str]) -> int:
    """`a3c-tf COMMAND ...`: runs a command, returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = (f"  {name:<10} {what}" for name, what in COMMANDS.items())
        with answer():
            print(HELP.format(commands="\n".join(lines)))
        return OK
    name, *rest = arguments
    if name not in COMMANDS:
        return usage(ConfigError(f"no command {name!r}{near(name, COMMANDS)}; see a3c-tf --help"))
    return command(name)(rest)


def command(name: str) -> Callable[[Sequence[str]], int]:
    """The function of a command, in the file of its name."""
    run: Callable[[Sequence[str]], int] = getattr(import_module(f"a3c_tf.commands.{name}"), name)
    return run


def main(run: Callable[[Sequence[str]], int] = dispatch) -> None:
    """Runs a command on the program's arguments and exits with its code."""
    handler = RaiseOnce()
    handler.install()
    if isinstance(sys.stdout, TextIOWrapper):  # names that its encoding does not have are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
    except SystemExit as error:  # --help, a wrong flag, or an answer that cannot be written
        code = int(error.code or OK)
    except KeyboardInterrupt as error:
        show(Console(), "interrupted")
        code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    with answer():  # what has been printed, but not yet written
        handler.ignore()
    sys.exit(code)
