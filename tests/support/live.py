"""A running live page, started by `mrclab live` as a user does, and requests to it."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command import Mrclab

PATIENCE_S = 120.0


@dataclass
class LivePage:
    """A running live page. ``owner`` and ``watcher`` are the two printed addresses."""

    process: subprocess.Popen[str]
    owner: str
    watcher: str

    @property
    def base(self) -> str:
        return self.owner.split("?")[0]

    def ask(self, path: str, body: object = None, *, owner: bool = True) -> Any:
        """Send a request and return the answer's JSON. A refusal raises HTTPError."""
        token = (self.owner if owner else self.watcher).split("token=")[1]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        return json.loads(text) if answer.headers["content-type"].startswith("application/json") else text

    def refusal(self, path: str, body: object = None, *, owner: bool = True) -> tuple[int, str]:
        try:
            self.ask(path, body, owner=owner)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]
        raise AssertionError(f"{path} was not refused")

    def frame_with(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until a page update fulfils a condition, and return the page update."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            frame: dict[str, Any] | None = self.ask("state")["frame"]
            if frame is not None and holds(frame):
                return frame
            time.sleep(0.1)  # the page gets ten frames a second
        raise AssertionError(f"no frame like that in {PATIENCE_S} s: {frame}")

    def end(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return said


def rates(frame: dict[str, object]) -> dict[str, int]:
    """Return the rate at which each transport delivers data, bit/s."""
    transports = frame["transports"]
    assert isinstance(transports, dict)
    return {name: sum(flow[2] for flow in one["flows"]) for name, one in transports.items()}


@contextmanager
def live_page(runner: Mrclab, *words: str, clean: bool = True) -> Iterator[LivePage]:
    """Start a page. At the end, kill it and, with ``clean``, remove everything that it may have left."""
    temporary = Path(tempfile.mkdtemp(prefix="test-live-"))
    process = subprocess.Popen(
        runner.command("live", "--port", "0", *words),
        env={**runner.environment, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said, found = "", []
        while len(found) < 2:
            line = process.stdout.readline()
            assert line, said
            said += line
            found = re.findall(r"http://\S+\?token=\S+", said)
        yield LivePage(process, *found)
    finally:
        process.kill()
        process.communicate()
        if clean:
            runner("clean")
        left = sorted(path.name for path in temporary.rglob("*"))
        shutil.rmtree(temporary)
    assert left == []
