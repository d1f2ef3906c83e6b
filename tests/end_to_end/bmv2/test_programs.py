"""A program in C sends data over BMv2. A link is cut: one path is retired, and all data arrives."""

from __future__ import annotations

from tests.support.command import Up
from tests.support.native_programs import await_retired, built, cut_at_half, needs_compiler, running

pytestmark = needs_compiler
MESSAGES = "18515", "65536", "200"


def test_a_program_goes_on_over_the_other_paths(tiny: Up) -> None:
    with built(pair="pair") as made:
        words = "--", str(made["pair"])
        with (
            running(tiny, "h2", *words, "server", *MESSAGES, "events") as server,
            running(tiny, "h0", *words, "client", *MESSAGES, "h2", "pause") as client,
        ):
            report = "ok 200 messages of 65536 bytes"
            cut_ns = cut_at_half(tiny, "p0-t0-0:p0-t1-0", client, server, report)
    await_retired(tiny, "h0", cut_ns)
