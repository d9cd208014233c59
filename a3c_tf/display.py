"""What a person sees while a run goes on: a progress bar, or a plain line now and then."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)

FIRST_LINE_SECONDS = 5.0
# Each plain line comes a third later than the one before: 40 lines last for five days.
LINE_GROWTH = 4 / 3


class Display(Protocol):
    """Shows where a run stands."""

    def update(self, step: int, last_score: float | None) -> None:
        """Called about ten times a second, in the main thread."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


class _Speed:
    """Steps a second since the start of this display, a resumed run's earlier steps left out."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def __call__(self, step: int) -> float:
        if self._first is None:
            self._first = monotonic(), step
        start, first = self._first
        seconds = monotonic() - start
        return (step - first) / seconds if seconds > 0 else 0.0


class BarDisplay:
    """A progress bar with the global step, steps/s, the last evaluation and the time left.

    Args:
        console: a terminal.
        total: environment steps at which the run ends.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._speed = _Speed()
        self._bar = Bar(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]:,.0f} steps/s"),
            TextColumn("evaluation {task.fields[score]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # no thread of its own beside the workers
        )
        self._task = self._bar.add_task("", total=total, speed=0.0, score="-")
        self._bar.start()

    def update(self, step: int, last_score: float | None) -> None:
        """Draws the bar again."""
        self._bar.update(
            self._task,
            completed=step,
            speed=self._speed(step),
            score=_format(last_score),
            refresh=True,
        )

    def close(self) -> None:
        """Leaves the last state of the bar on the screen."""
        self._bar.stop()


class LineDisplay:
    """For a log file: a plain line every so often, under 50 for a whole run.

    Args:
        console: not a terminal.
        total: environment steps at which the run ends.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._speed = _Speed()
        self._start = monotonic()
        self._next = FIRST_LINE_SECONDS

    def update(self, step: int, last_score: float | None) -> None:
        """Prints a line if it is time for one."""
        speed, seconds = self._speed(step), monotonic() - self._start
        if seconds < self._next:
            return
        self._next = seconds * LINE_GROWTH
        left = f"{max(self._total - step, 0) / speed:,.0f} s" if speed > 0 else "-"
        self._console.print(
            f"step {step:,}/{self._total:,}  {speed:,.0f} steps/s  "
            f"evaluation {_format(last_score)}  left {left}",
            highlight=False,
            soft_wrap=True,
        )

    def close(self) -> None:
        """Nothing is left to do."""


def make_display(console: Console, total: int) -> Display:
    """A bar on a terminal, lines elsewhere."""
    return BarDisplay(console, total) if console.is_terminal else LineDisplay(console, total)


def _format(score: float | None) -> str:
    return "-" if score is None else f"{score:.1f}"
