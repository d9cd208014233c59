"""Takes pictures of a run's pages in TensorBoard, with a browser that has no window.

pip install playwright && playwright install chromium
python scripts/screenshots.py --logdir runs --out docs/img
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import tyro
from tensorboard import program

PAGES = {
    "scalars": "scalars",
    "custom-scalars": "custom_scalars",
    "hparams": "hparams",
    "images": "images",
    "histograms": "histograms",
}
LOAD_SECONDS = 60.0  # for TensorBoard to read the runs
DRAW_SECONDS = 6.0  # for a page to draw its charts
MAX_BYTES = 300_000


@dataclass(frozen=True)
class ScreenshotConfig:
    """Takes pictures of TensorBoard's pages."""

    logdir: Path = Path("runs")
    """Where the runs are."""
    out: Path = Path("docs/img")
    """Where the pictures go."""
    browser: Path | None = None
    """Chromium's program; by default the one that playwright has installed."""
    width: int = 1600
    """Pixels."""
    height: int = 1000
    """Pixels."""


def start_tensorboard(logdir: Path) -> str:
    """Serves a directory from this program, on a free port; returns the address."""
    server = program.TensorBoard()
    server.configure(argv=["", "--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1"])
    return str(server.launch())


def main(config: ScreenshotConfig) -> None:
    """Writes one PNG for each page."""
    from playwright.sync_api import sync_playwright

    url = start_tensorboard(config.logdir)
    config.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        path = str(config.browser) if config.browser else None
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": config.width, "height": config.height})
        deadline = monotonic() + LOAD_SECONDS
        while page.request.get(f"{url}data/runs").json() == [] and monotonic() < deadline:
            sleep(1.0)
        for name, fragment in PAGES.items():
            page.goto(f"{url}#{fragment}")
            page.reload()  # another fragment alone does not load the page anew
            sleep(DRAW_SECONDS)
            picture = page.screenshot(path=config.out / f"{name}.png")
            print(f"{config.out / name}.png: {len(picture):,} bytes")
            if len(picture) > MAX_BYTES:
                raise SystemExit(f"{name}.png is larger than {MAX_BYTES:,} bytes")
        browser.close()


if __name__ == "__main__":
    main(tyro.cli(ScreenshotConfig))
