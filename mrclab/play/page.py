"""The simulation on a web page, for the page's worker (a browser thread). Methods take and return JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.play.scene import Scene, scene_of
from mrclab.play.session import PACES, Play
from mrclab.topologies import fabric_from_text

PARTS = 8
"""The number of parts in which a page update is simulated. The simulation can stop after each part."""


class Page:
    """The page's simulation, which `open` replaces. ``fabrics`` maps names to texts (see `fabric_text`)."""

    def __init__(self, fabrics: Mapping[str, str], version: str) -> None:
        self._fabrics = fabrics
        self._version = version
        self._play: Play | None = None

    def open(self, wish: str) -> str:
        """Begin a scene and return the page's constant data. ``wish`` is JSON: scene, ``events``, ``pace``.

        If the scene is not valid, return {"error": ...}.
        """
        return _answered(lambda: self._open(json.loads(wish)))

    def _open(self, wish: Any) -> dict[str, Any]:
        if not isinstance(wish, dict):
            raise InputError("an address describes a scene")
        rest = dict(wish)
        events, pace = rest.pop("events", []), rest.pop("pace", None)
        scene = scene_of(rest)
        if scene.fabric not in self._fabrics:
            raise InputError(f"no fabric '{scene.fabric}' here: choose {', '.join(self._fabrics)}")
        play = Play(scene, fabric_from_text(self._fabrics[scene.fabric]))
        play.plan_events(events)
        if pace is not None:
            play.set_pace(min(max(int(pace), PACES[0]), PACES[-1]))
        self._play = play
        about = play.about(self._version)
        about["sim"]["fabrics"] = list(self._fabrics)
        return {**about, "owner": True}

    def ask(self, path: str, body: str) -> str:
        """Answer a request of the page in JSON. If the request is not valid, return {"error": ...}."""
        return _answered(lambda: self._running.ask(path, json.loads(body)))

    def turn(self, viewer_s: float, in_time: Callable[[], bool]) -> str:
        """Simulate ``viewer_s`` of the viewer's time while ``in_time`` returns True. Return a page update."""
        play = self._running
        step_ns = max(1, round(viewer_s * play.pace))
        end_ns, part_ns = play.now_ns + step_ns, max(1, step_ns // PARTS)
        while play.now_ns < end_ns and in_time():
            play.advance(min(end_ns, play.now_ns + part_ns))
        return json.dumps(play.frame(), separators=(",", ":"))

    def link(self) -> str:
        """Return the scene, its events and its pace in JSON, which `open` can read."""
        play = self._running
        usual = Scene().to_dict()
        scene = {name: value for name, value in play.scene.to_dict().items() if value != usual[name]}
        return json.dumps({**scene, "pace": play.pace, "events": play.events}, separators=(",", ":"))

    @property
    def _running(self) -> Play:
        if self._play is None:
            raise InputError("no scene is open")
        return self._play


def _answered(work: Callable[[], dict[str, Any]]) -> str:
    try:
        return json.dumps(work(), separators=(",", ":"))
    except (InputError, ValueError, TypeError) as error:
        return json.dumps({"error": str(error)})
