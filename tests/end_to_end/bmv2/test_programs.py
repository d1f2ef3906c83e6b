"""A program in C over BMv2: a cut retires a path, and costs no byte."""

from __future__ import annotations

import time

from tests.support.command import Up
from tests.support.native_programs import await_retired, built, end, needs_compiler, running

pytestmark = needs_compiler
MESSAGES = "18515", "65536", "200"


def test_a_program_goes_on_over_the_other_paths(tiny: Up) -> None:
    with built(pair="pair") as made:
        words = "--", str(made["pair"])
        with (
            running(tiny, "h2", *words, "server", *MESSAGES, "events") as server,
            running(tiny, "h0", *words, "client", *MESSAGES, "h2", "pause") as client,
        ):
            assert client.stdout is not None
            assert client.stdin is not None
            assert client.stdout.readline() == "connected\n"
            assert client.stdout.readline() == "half\n"
            cut_ns = time.monotonic_ns()
            tiny.mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-0")
            try:
                client.stdin.write("\n")
                client.stdin.flush()
                assert "ok 200 messages of 65536 bytes" in end(client)
                assert "ok 200 messages of 65536 bytes" in end(server)
            finally:
                tiny.mrclab.ok("restore", "--all")
        assert (client.returncode, server.returncode) == (0, 0)
    await_retired(tiny, "h0", cut_ns)
