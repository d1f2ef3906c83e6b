"""The page of a running training in a real browser: it shows the files that the run writes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import chromium, view_of
from tests.support.training_run import begin, begin_run, fault, finish, step

WAIT_MS = 60_000
pytestmark = pytest.mark.slow


def test_a_page_that_follows_a_run_shows_each_step_as_it_is_written(tmp_path: Path) -> None:
    begin_run(tmp_path)
    finish(tmp_path, "mrc-0", 90, stall_ms=40)
    finish(tmp_path, "control-0", 90, stall_ms=0)
    command = [sys.executable, "-m", "mrclab", "live", "--run", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        with chromium() as browser, view_of(browser, found.group(), WAIT_MS) as view:
            view.locator("[data-training=mrc]").wait_for()
            place = begin(tmp_path, "rocev2-0")
            fault(place, 500, undone=False)
            for number in range(30):
                step(place, number)
            view.locator("[data-training=rocev2] [data-steps='30']").wait_for()
            assert "flap at p1-t0-0:p1-t1-0" in view.inner_text("[data-training=rocev2]")
            assert "step 30 of 90" in view.inner_text("#where")
            assert "not begun" in view.inner_text("#table")
            if pictures := os.environ.get("MRCLAB_PICTURES"):
                for width, theme in ((1400, "light"), (820, "dark"), (390, "light")):
                    view.set_viewport_size({"width": width, "height": 900})
                    view.evaluate(
                        "(theme) => { document.documentElement.dataset.theme = theme; M.training.soon(); }",
                        theme,
                    )
                    view.wait_for_function("!M.training.waiting")
                    view.screenshot(path=f"{pictures}/training-{width}-{theme}.png", full_page=True)
            view.set_viewport_size({"width": 390, "height": 844})
            assert view.evaluate("document.documentElement.scrollWidth") <= 390
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
