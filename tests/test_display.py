"""What is shown of a run: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from a3c_tf import display
from a3c_tf.display import BarDisplay, LineDisplay, make_display

ESCAPE = "\x1b"
DAY = 24 * 60 * 60


class _Clock:
    """Stands for `time.monotonic`; starts late, as a machine's does."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Time that passes when a test says so."""
    clock = _Clock()
    monkeypatch.setattr(display, "monotonic", clock)
    return clock


def make_console(terminal: bool, width: int = 120) -> Console:
    """A console that keeps what is printed."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def printed(console: Console) -> str:
    """All that has been printed."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_choice() -> None:
    """A bar on a terminal, lines elsewhere."""
    shown = make_display(make_console(terminal=True), 10)
    assert isinstance(shown, BarDisplay)
    shown.close()
    assert isinstance(make_display(make_console(terminal=False), 10), LineDisplay)


# Lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [1, 5])
def test_few_lines_for_a_long_run(clock: _Clock, days: int) -> None:
    """Under 50, also for five days; the first comes soon."""
    console = make_console(terminal=False)
    shown = LineDisplay(console, 10**9)
    for second in range(0, days * DAY, 2):
        clock.now += 2
        shown.update(second * 1000, 475.0)
        if second == 60:
            assert 2 <= len(printed(console).splitlines()) <= 12
    shown.close()
    assert 10 < len(printed(console).splitlines()) < 50


def test_line(clock: _Clock) -> None:
    """Step, speed, last evaluation and the time left; plain, and never wrapped."""
    console = make_console(terminal=False, width=20)
    shown = LineDisplay(console, 5000)
    shown.update(0, None)
    clock.now += 10
    shown.update(1000, None)
    clock.now += 10
    shown.update(2000, 12.34)
    first, second = printed(console).splitlines()
    assert first == "step 1,000/5,000  100 steps/s  evaluation -  left 40 s"
    assert second == "step 2,000/5,000  100 steps/s  evaluation 12.3  left 30 s"
    assert ESCAPE not in printed(console)


def test_line_before_the_first_step(clock: _Clock) -> None:
    """Nothing is known yet, and nothing is divided by zero."""
    console = make_console(terminal=False)
    shown = LineDisplay(console, 5000)
    clock.now += 10
    shown.update(0, None)
    assert printed(console) == "step 0/5,000  0 steps/s  evaluation -  left -\n"


def test_line_past_the_end(clock: _Clock) -> None:
    """The last rollouts may go beyond the total; no time is left then, and not less."""
    console = make_console(terminal=False)
    shown = LineDisplay(console, 1000)
    shown.update(0, None)
    clock.now += 10
    shown.update(1004, None)
    assert printed(console).endswith("left 0 s\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_speed_of_a_resumed_run(clock: _Clock, terminal: bool) -> None:
    """The steps of the run before it do not count."""
    console = make_console(terminal)
    shown = make_display(console, 2_000_000)
    shown.update(1_000_000, None)
    clock.now += 10
    shown.update(1_001_000, None)
    shown.close()
    assert "step 1,001,000/2,000,000" in printed(console)
    assert " 100 steps/s" in printed(console)


# Bar --------------------------------------------------------------------------------------------


def test_bar(clock: _Clock) -> None:
    """Step, share, speed, last evaluation; redrawn in place, and left as it was at the end."""
    console = make_console(terminal=True)
    shown = BarDisplay(console, 5000)
    shown.update(0, None)
    assert "evaluation -" in printed(console)
    clock.now += 10
    shown.update(1000, 12.34)
    shown.close()
    last = printed(console).split("\r")[-1]
    for text in ("step 1,000/5,000", "20%", "100 steps/s", "evaluation 12.3", "left"):
        assert text in last
    assert printed(console).count("\n") == 1
    hide, show = f"{ESCAPE}[?25l", f"{ESCAPE}[?25h"
    assert printed(console).count(hide) == printed(console).count(show) == 1
    assert printed(console).rindex(show) > printed(console).index(hide)


def test_bar_is_closed_twice(clock: _Clock) -> None:
    """The second time does nothing."""
    console = make_console(terminal=True)
    shown = BarDisplay(console, 5000)
    shown.close()
    once = printed(console)
    shown.close()
    assert printed(console) == once
