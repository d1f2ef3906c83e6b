"""When a live page ends, it leaves nothing behind.

The page that other tests share uses all CPUs. So these tests have a separate module: next to that page, their
pages would get too little CPU time.
"""

import os
import signal
import time

import pytest

from mrclab.testbed.names import Names
from tests.support.command import Mrclab, snapshot
from tests.support.live import PATIENCE_S, live_page, rates

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def runner() -> Mrclab:
    return Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))


@pytest.mark.slow
def test_a_signal_takes_down_what_the_page_brought_up(runner: Mrclab) -> None:
    own = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    before = snapshot(own.names)
    with live_page(own, "--topology", "tiny") as page:
        page.frame_with(rates)
        said = page.end(signal.SIGTERM)
        assert "everything is gone" in said
        assert page.process.returncode == 0
    assert snapshot(own.names) == before


@pytest.mark.slow
def test_a_page_that_joined_leaves_the_testbed_and_one_whose_testbed_goes_says_so(runner: Mrclab) -> None:
    own = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        own.ok("up", "--topology", "tiny")
        with live_page(own, clean=False) as page:
            page.frame_with(rates)
            page.end()
            assert own.status()["topology"] == "tiny"
        with live_page(own) as page:
            page.frame_with(rates)
            own.ok("down")
            page.process.wait(60)
            assert page.process.returncode == 1
    finally:
        own("clean")


def test_bad_arguments_are_one_line(runner: Mrclab) -> None:
    for words in (("--port", "70000"), ("--topology", "nothing-like-it")):
        done = runner("live", *words)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1


def test_without_a_page_the_terminal_says_so() -> None:
    done = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))("watch")
    assert done.returncode == 2
    assert "mrclab live" in done.stderr


@pytest.mark.slow
def test_a_page_that_is_killed_with_clustermapper_on_leaves_no_file() -> None:
    names = Names.of_prefix(f"t{os.urandom(3).hex()}")
    with live_page(Mrclab(names), "--topology", "tiny") as page:
        page.ask("mapper", {"on": True})
        page.frame_with(lambda f: f["mapper"] and not f["mapper"]["starting"])
    assert not names.state_dir.exists()


def test_a_page_that_is_killed_takes_its_testbed_with_it() -> None:
    names = Names.of_prefix(f"t{os.urandom(3).hex()}")
    with live_page(Mrclab(names), "--topology", "tiny") as page:
        page.process.kill()
        deadline = time.monotonic() + PATIENCE_S
        while names.state_dir.exists() and time.monotonic() < deadline:
            signal.sigtimedwait([], 0.1)
        assert not names.state_dir.exists()
