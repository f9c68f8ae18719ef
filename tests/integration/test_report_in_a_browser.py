"""A report in a real browser: everything is drawn, without an error, on a laptop and narrower."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_ps.chaos.report.page import page

sys.path.append(str(Path(__file__).parents[1] / "unit" / "chaos"))
from sample_run import sample_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)

# What is wider than the window, and how many panels are drawn, as the title of the page.
LOOK = """<script>document.title = [
  document.documentElement.scrollWidth - window.innerWidth,
  document.querySelectorAll(".drawing .main-svg .xtick").length > 0,
  [...document.querySelectorAll(".drawing")].filter((d) => d.querySelector(".main-svg")).length,
].join(" ");</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason=f"there is no browser here: {', '.join(NAMES)}")
@pytest.mark.parametrize("width_px", [pytest.param(1440, marks=pytest.mark.soak), 520])
def test_every_panel_is_drawn_and_nothing_is_wider_than_the_window(
    width_px: int, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(sample_run()).replace("</body>", LOOK))
    shown = subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--hide-scrollbars", "--enable-logging=stderr", f"--window-size={width_px},900"),
            *(f"--user-data-dir={tmp_path}/profile", path.as_uri()),
        ],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    title = re.search(r"<title>(.*?)</title>", shown.stdout)
    assert title is not None
    assert title[1] == "0 true 5", shown.stderr[-2000:]
    assert "CONSOLE" not in shown.stderr
