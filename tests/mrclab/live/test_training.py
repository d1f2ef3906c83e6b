"""The page of a training follows the files that a run writes."""

import argparse
import asyncio
import shutil
from pathlib import Path

import httpx
import pytest

from mrclab.experiments.run.training import COURSE, STEPS, CourseLog, progress_of
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.linux.errors import InputError
from mrclab.live.command import live
from mrclab.live.serving import Access
from mrclab.live.training import Follower, application
from tests.support.training_run import BEGIN_NS, MS, begin, begin_run, fault, finish, step


def test_what_a_run_notes_of_its_faults_is_what_is_read(tmp_path: Path) -> None:
    log = CourseLog(tmp_path / COURSE)
    assert progress_of(tmp_path) is None
    log.begin(BEGIN_NS)
    planned = PlannedFault("flap", "p1-t0-0:p1-t1-0", 0, None, "both", {})
    log.note(planned, BEGIN_NS + 2 * MS, False)
    log.note(planned, BEGIN_NS + 7 * MS, True)
    log.note(planned, BEGIN_NS + 9 * MS, False)
    found = progress_of(tmp_path)
    assert found is not None
    assert [(f["at_us"], f["until_us"]) for f in found.faults] == [(2000, 7000), (9000, None)]


def test_a_line_that_is_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    place = begin(tmp_path, "mrc-0")
    step(place, 0)
    with (place / STEPS).open("a", encoding="utf-8") as out:
        out.write('{"start_ns": 12')
    found = progress_of(place)
    assert found is not None
    assert (found.start_us, found.computed_us, found.end_us, found.losses) == ([0], [120e3], [150e3], [4.0])


def test_a_log_of_no_file_writes_nothing(tmp_path: Path) -> None:
    CourseLog(None).begin(1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_over_and_what_runs_are_shown_together(tmp_path: Path) -> None:
    begin_run(tmp_path)
    finish(tmp_path, "mrc-0", 10, stall_ms=40)
    finish(tmp_path, "rocev2-0", 10, stall_ms=3000)
    follower = Follower(tmp_path)
    frame = follower.frame()
    assert set(frame) == {"about", "mrc-0", "rocev2-0"}
    assert not frame["about"]["finished"]
    assert (frame["mrc-0"]["longest_us"], frame["mrc-0"]["crashes"]) == (40_000, 0)
    assert frame["mrc-0"]["faults"] == [
        {"kind": "switch-reboot", "place": "p0-t1-0", "at_us": 600_000, "until_us": 4_600_000}
    ]
    roce = frame["rocev2-0"]
    assert (roce["longest_us"], roce["crashes"], roce["lost_steps"]) == (3_000_000, 1, 5)
    place = begin(tmp_path, "frr-0")
    assert follower.frame()["frr-0"]["losses"] == []
    fault(place, 100, undone=False)
    step(place, 0)
    step(place, 1, took_ms=149)
    running = follower.frame()["frr-0"]
    assert running["running"]
    assert (running["step_us"], running["losses"]) == ([150_000, 149_000], [4.0, 3.98])
    assert running["faults"][0]["until_us"] is None
    shutil.rmtree(place)
    assert "frr-0" not in follower.frame(), "a repetition that is made again begins anew"


def test_a_directory_of_another_run_or_of_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in"):
        Follower(tmp_path)
    begin_run(tmp_path, "link-kill")
    with pytest.raises(InputError, match="trains nothing"):
        Follower(tmp_path)
    asked = argparse.Namespace(run=str(tmp_path), topology="lab", program=None, port=0, listen=None)
    with pytest.raises(InputError, match="own testbed"):
        live(asked)


def test_the_page_needs_its_token_and_shows_the_frame(tmp_path: Path) -> None:
    begin_run(tmp_path)
    finish(tmp_path, "mrc-0", 5, stall_ms=0)
    app = application(Follower(tmp_path), Access("own", "watch", frozenset({"127.0.0.1"})))

    async def story() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            paths = (
                "/state",
                "/?token=watch",
                "/static/training.js?token=watch",
                "/static/server.py?token=watch",
            )
            return [await client.get(path) for path in paths] + [
                await client.get("/state", headers={"Authorization": "Bearer watch"}),
                await client.post("/state", headers={"Authorization": "Bearer watch"}),
            ]

    bare, first, script, outside, shown, posted = asyncio.run(story())
    assert [one.status_code for one in (first, bare, script, outside, posted)] == [303, 403, 200, 404, 403]
    assert shown.json()["mrc-0"]["transport"] == "mrc"
