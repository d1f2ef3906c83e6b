"""The page of a training run (``mrclab live --run DIR``): read the run's directory and serve the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mrclab.experiments.measure.metrics import Steps, course_under
from mrclab.experiments.measure.repetition import REPETITION_FILE, Repetition, load_repetition
from mrclab.experiments.report.build import load_run
from mrclab.experiments.result.file import NAME as RESULT
from mrclab.experiments.run.training import COURSE, STEPS, progress_of
from mrclab.linux.errors import InputError
from mrclab.live.recording import changed, static
from mrclab.live.serving import Access, EventStream, Guard, event_line, page_routes

Marks = tuple[int, ...]


class Follower:
    """A reader of new data in a training run's directory. Raise InputError if the run trains nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._run = load_run(directory)
        self._workload: Mapping[str, Any] = self._run.parameters["workload"]
        if self._workload.get("kind") != "transformer":
            raise InputError(
                f"the run in '{directory}' trains nothing (its workload is '{self._workload.get('kind')}'): "
                f"mrclab report {directory} shows it"
            )
        self._known: dict[str, tuple[Marks, dict[str, Any]]] = {}

    def frame(self) -> dict[str, Any]:
        """Return the page's data: ``about``, and each repetition that has begun, by directory name."""
        found: dict[str, Any] = {"about": self._about()}
        for transport in self._run.transports:
            for number in range(int(self._run.parameters["repetitions"])):
                name = f"{transport.name}-{number}"
                place = self._directory / name
                marks = tuple(_mark(place / file) for file in (REPETITION_FILE, COURSE, STEPS))
                if name not in self._known or self._known[name][0] != marks:
                    self._known[name] = marks, self._repetition(transport.name, number, place)
                if self._known[name][1]:
                    found[name] = self._known[name][1]
        return found

    def _about(self) -> dict[str, Any]:
        return {
            "scenario": self._run.scenario,
            "directory": str(self._directory),
            "topology": self._run.topology,
            "transports": [transport.name for transport in self._run.transports],
            "repetitions": self._run.parameters["repetitions"],
            "steps": self._workload["steps"],
            "timeout_us": self._workload["collective_timeout_ns"] / 1e3,
            "finished": (self._directory / RESULT).exists(),
        }

    def _repetition(self, transport: str, number: int, place: Path) -> dict[str, Any]:
        """Return the data of a repetition, or an empty dict if it has not begun."""
        try:
            if (place / REPETITION_FILE).exists():
                return self._finished(transport, number, load_repetition(place))
            progress = progress_of(place)
        except (InputError, ValueError, KeyError):
            return {}  # the file is incomplete; it is read again soon
        if progress is None:
            return {}
        return self._shown(transport, number, _steps(asdict(progress)), progress.faults, running=True)

    def _finished(self, transport: str, number: int, found: Repetition) -> dict[str, Any]:
        training = found.details.get("training")
        if training is None:
            return {}
        faults = [
            {
                "kind": fault.kind,
                "place": fault.where,
                "at_us": (fault.middle_ns - found.measure_ns) / 1e3,
                "until_us": None
                if fault.restore_before_ns is None
                else (fault.restore_before_ns - found.measure_ns) / 1e3,
            }
            for fault in found.faults
        ]
        shown = self._shown(transport, number, _steps(training), faults, running=False)
        shown["failure"] = found.failure or found.problem
        return shown

    def _shown(
        self, transport: str, number: int, steps: Steps, faults: list[dict[str, Any]], *, running: bool
    ) -> dict[str, Any]:
        workload = self._workload
        comm = steps.collective_us
        stalled = np.maximum(0, comm - np.median(comm)) if len(comm) else comm
        timeout_us, restart_us = workload["collective_timeout_ns"] / 1e3, workload["restart_ns"] / 1e3
        course = course_under(steps, timeout_us, workload["checkpoint_steps"], restart_us)
        took = steps.end_us - steps.start_us
        return {
            "transport": transport,
            "number": number,
            "running": running,
            "end_us": _rounded(steps.end_us),
            "step_us": _rounded(took),
            "losses": [round(loss, 4) for loss in steps.losses.tolist()],
            "faults": faults,
            "stalled_us": round(float(stalled.sum())),
            "longest_us": round(float(stalled.max())) if len(stalled) else 0,
            "stalled_share": round(float(stalled.sum() / took.sum()), 4) if len(took) else 0.0,
            "crashes": len(course.crashes),
            "lost_steps": sum(crash.lost_steps for crash in course.crashes),
            "failure": None,
        }


def _steps(columns: Mapping[str, Any]) -> Steps:
    return Steps(**{field.name: np.array(columns[field.name], float) for field in fields(Steps)})


def _rounded(values: np.ndarray[Any, Any]) -> list[int]:
    return [round(value) for value in values.tolist()]


def _mark(file: Path) -> int:
    """Return a number that changes when a file changes."""
    try:
        found = file.stat()
    except OSError:
        return -1
    return found.st_mtime_ns ^ found.st_size


SCRIPTS = ("format.js", "training.js")
ASSETS = dict.fromkeys(SCRIPTS, "text/javascript") | dict.fromkeys(("live.css", "training.css"), "text/css")
LOOK_EVERY_S = 0.5


def application(follower: Follower, access: Access) -> Starlette:
    """Return the web application that shows the data of ``follower``."""

    async def state(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(follower.frame))

    async def events(_request: Request) -> Response:
        async def lines() -> AsyncGenerator[str, None]:
            before: Mapping[str, Any] = {}
            while True:
                frame = {"t_ms": 0, **await asyncio.to_thread(follower.frame)}
                told = changed(frame, before)
                gone = [name for name in before if name not in frame]
                before = frame
                if len(told) > 1 or gone:
                    yield event_line({**told, **dict.fromkeys(gone)})
                else:
                    yield ": nothing new\n\n"
                await asyncio.sleep(LOOK_EVERY_S)

        return EventStream(lines())

    return Starlette(
        routes=[
            *page_routes(lambda: static("training.html"), ASSETS),
            Route("/state", state),
            Route("/events", events),
        ],
        middleware=[Middleware(Guard, access=access)],
    )
