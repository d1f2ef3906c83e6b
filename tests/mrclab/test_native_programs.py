"""Programs in C on a fabric whose NIC services run the core in pure Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Up
from tests.support.native_programs import (
    built,
    end,
    end_service,
    needs_compiler,
    running,
    service,
)

pytestmark = [pytest.mark.root, needs_compiler]
PORT = "18516"
MESSAGES = "64"


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Path]]:
    with built(pair="pair") as made:
        yield made


def _pair(up: Up, pair: Path, *mode: str, count: str = MESSAGES, **options: object) -> list[tuple[int, str]]:
    """Run ``pair`` as a server (with the arguments ``mode``) and a client. Return exit codes and outputs."""
    environment = {key: str(value) for key, value in options.items()}
    words = ("65536", count)
    with (
        running(up, "h2", "--", str(pair), "server", PORT, *words, *mode, environment=environment) as server,
        running(up, "h0", "--", str(pair), "client", PORT, *words, "h2", environment=environment) as client,
    ):
        said = [end(process) for process in (server, client)]
    return [(server.returncode, said[0]), (client.returncode, said[1])]


def test_the_pure_core_serves_programs_too(tiny: Up, programs: dict[str, Path]) -> None:
    hosts = ("h0", "h2")
    for host in hosts:
        end_service(tiny, host)
    try:
        for code, said in _pair(tiny, programs["pair"], MRCLAB_PURE=1):
            assert f"ok {MESSAGES} messages" in said
            assert code == 0
        for host in hosts:
            environ = Path(f"/proc/{service(tiny, host)}/environ").read_bytes()
            assert b"MRCLAB_PURE=1" in environ.split(b"\0")
    finally:
        for host in hosts:
            end_service(tiny, host)
