"""Record a live page: its updates (frames) and packets, compressed. Write a replay as one HTML file."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

KEPT_PACKETS_BYTES = 8 << 20
"""The limit for the stored packets around faults, compressed. It is enough for some hundred faults."""


def pack(document: Mapping[str, Any]) -> bytes:
    """Return a document as compressed JSON. Python objects would need ten times the memory."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)


def unpack(packed: bytes) -> dict[str, Any]:
    """Return the document that was given to `pack`."""
    found: dict[str, Any] = json.loads(zlib.decompress(packed))
    return found


class KeptPackets:
    """The stored packets around faults, by fault number and transport. The oldest are dropped first."""

    def __init__(self, most_bytes: int = KEPT_PACKETS_BYTES) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._packed: OrderedDict[tuple[int, str], bytes] = OrderedDict()

    def put(self, number: int, transport: str, packets: Mapping[str, Any]) -> None:
        """Store the packets of a fault. They replace the packets stored earlier for this fault."""
        self.held_bytes -= len(self._packed.pop((number, transport), b""))
        self._packed[number, transport] = packed = pack(packets)
        self.held_bytes += len(packed)
        while self.held_bytes > self._most_bytes:
            self.held_bytes -= len(self._packed.popitem(last=False)[1])

    def of(self, number: int, transport: str) -> dict[str, Any] | None:
        """Return the packets of a fault, or None if no packets are stored."""
        packed = self._packed.get((number, transport))
        return None if packed is None else unpack(packed)


KEPT_FRAMES = 6000
"""The largest number of stored page updates (frames): ten minutes at ten updates a second."""
SHOWN_FRAMES = 300
"""The number of page updates in the charts: 20 s at the simulator's 15 updates a second."""
KEPT_BYTES = 48 << 20
"""The limit for all stored page updates, compressed. Large fabrics reach it before `KEPT_FRAMES`."""
KEPT_PAIRS = 64
"""The largest number of pairs of hosts whose paths are recorded after a viewer has looked at them."""
SCRIPTS = (
    *("format.js", "words.js", "fabric.js", "motion.js", "charts.js", "panels.js", "stage.js", "tour.js"),
    *("timeline.js", "source.js", "app.js"),
)


class Recording:
    """The newest page updates (frames) of a session. Other threads may call ``frames`` during ``add``."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)
        self.held_bytes = 0
        self._asked: deque[str] = deque()
        self._frames: deque[tuple[int, bytes]] = deque()
        """The time of each page update in ms, and its compressed JSON document (see `pack`)."""
        self._lock = threading.Lock()

    def add(self, frame: dict[str, Any]) -> None:
        """Store a complete page update with its time ``t_ms``. If too many are stored, drop the oldest."""
        packed = pack(frame)
        with self._lock:
            self._frames.append((frame["t_ms"], packed))
            self.held_bytes += len(packed)
            while len(self._frames) > KEPT_FRAMES or self.held_bytes > KEPT_BYTES:
                self.held_bytes -= len(self._frames.popleft()[1])

    def note_paths(self, pair: str, rows: list[list[Any]]) -> None:
        """Record the paths of a pair of hosts ("source>target") that a viewer looked at."""
        evs = self.about.setdefault("evs", {})
        if pair in evs:
            return
        evs[pair] = rows
        self._asked.append(pair)
        if len(self._asked) > KEPT_PAIRS:
            del evs[self._asked.popleft()]

    def frames(self, seconds: float | None = None) -> list[dict[str, Any]]:
        """Return the page updates of the last ``seconds`` seconds. If ``seconds`` is None, return all."""
        with self._lock:
            kept = list(self._frames)
        begin = kept[-1][0] - seconds * 1000 if kept and seconds is not None else 0
        return [unpack(packed) for t_ms, packed in kept if t_ms >= begin]

    def recent(self) -> list[dict[str, Any]]:
        """Return the newest page updates, as many as the charts of the page show."""
        with self._lock:
            kept = [
                self._frames[n][1] for n in range(max(0, len(self._frames) - SHOWN_FRAMES), len(self._frames))
            ]
        return [unpack(packed) for packed in kept]


def changed(frame: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time of a page update and the parts that differ from the previous page update."""
    return {k: v for k, v in frame.items() if k == "t_ms" or k not in before or before[k] != v}


def thinned(frames: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the page updates, each without the parts that are equal in the previous page update."""
    found: list[dict[str, Any]] = []
    before: Mapping[str, Any] = {}
    for frame in frames:
        found.append(changed(frame, before))
        before = frame
    return found


def static(name: str) -> str:
    """Return the text of a file of the page. Raise FileNotFoundError if there is no such file."""
    return (files("mrclab.live") / "static" / name).read_text(encoding="utf-8")


def replay_page(
    about: Mapping[str, Any], frames: Sequence[Mapping[str, Any]], packets: Mapping[str, Any] | None = None
) -> str:
    """Return an HTML page that replays page updates. The keys of ``packets`` are "fault number/transport"."""
    document = {"about": dict(about), "frames": thinned(frames), "packets": dict(packets or {})}
    packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
    data = base64.b64encode(packed).decode()
    scripts = "\n".join(f"<script>\n{static(name)}\n</script>" for name in SCRIPTS)
    page = static("index.html")
    page = page.replace("<!--style-->", f"<style>\n{static('live.css')}\n</style>")
    return page.replace("<!--scripts-->", f'<script>window.RECORDING = "{data}";</script>\n{scripts}')


def live_page() -> str:
    """Return the page of the live server, which loads its scripts and style sheet from the server."""
    scripts = "\n".join(f'<script src="static/{name}"></script>' for name in SCRIPTS)
    page = static("index.html").replace("<!--style-->", '<link rel="stylesheet" href="static/live.css">')
    return page.replace("<!--scripts-->", scripts)
