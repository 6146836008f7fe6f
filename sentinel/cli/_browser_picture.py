"""A picture of a report, taken by the Chromium of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = (
    "chromium-headless-shell",
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
)
"""Names of Chromium; the first is the part of it without windows, which starts faster."""
_WIDTH, _FIRST_HEIGHT, _MAX_HEIGHT = 1400, 6000, 16_000
"""Size of the window in pixels; Chromium makes no picture above 16,384."""
_VIRTUAL_MS, _TIMEOUT_SECONDS = 15_000, 180.0
_HEIGHT = re.compile(r'<html[^>]*\bdata-height="(\d+)"')


class PictureError(Exception):
    """No picture was taken; the message states why and what to do."""


def find_chromium() -> str:
    """The path of Chromium; empty if there is none on PATH."""
    return next(filter(None, map(shutil.which, PROGRAMS)), "")


def take_picture(html: str, path: Path) -> None:
    """Write a PNG picture of the whole page to `path`. Raises PictureError."""
    browser = find_chromium()
    if not browser:
        raise PictureError(
            "there is no Chromium or Chrome on PATH for the picture. Install one (Debian: apt "
            "install chromium), or write the HTML report and print it in a browser."
        )
    with tempfile.TemporaryDirectory(prefix="sentinel-picture-") as name:
        folder = Path(name)
        page, picture = folder / "report.html", folder / "report.png"
        page.write_text(html, encoding="utf-8")
        found = _HEIGHT.search(_run(browser, folder, _FIRST_HEIGHT, page, "--dump-dom"))
        height = min(int(found[1]) if found else _FIRST_HEIGHT, _MAX_HEIGHT)
        _run(browser, folder, height, page, f"--screenshot={picture}")
        if not picture.is_file():
            raise PictureError(f"{browser} wrote no picture; open the HTML report instead.")
        try:
            shutil.copyfile(picture, path)
        except OSError as error:
            raise PictureError(f"cannot write {path}: {error.strerror or error}") from None


def _run(browser: str, folder: Path, height: int, page: Path, action: str) -> str:
    """What the browser prints. Raises PictureError."""
    options = [
        *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", f"--window-size={_WIDTH},{height}"),
        *(f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={_VIRTUAL_MS}"),
        # Its sandbox does not start for this user.
        *(("--no-sandbox",) if os.geteuid() == 0 else ()),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - a browser on PATH with a file of ours
            [browser, *options, action, f"{page.as_uri()}#picture"],
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env={**os.environ, "HOME": str(folder)},
        )
    except subprocess.TimeoutExpired:
        raise PictureError(f"{browser} took longer than {_TIMEOUT_SECONDS:.0f} s.") from None
    except OSError as error:
        raise PictureError(f"{browser} cannot be started: {error.strerror or error}") from None
    if done.returncode:
        raise PictureError(f"{browser} failed with exit status {done.returncode}.")
    return done.stdout.decode("utf-8", "replace")
