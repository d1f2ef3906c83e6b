"""The way of a frame through parser, ingress, replication, egress and deparser."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mrclab.switches.p4_model.controls import Controls
from mrclab.switches.p4_model.frame import (
    DROP,
    EGRESS_CLONE,
    INGRESS_CLONE,
    RECIRCULATED,
    REPLICATION,
    RESUBMITTED,
    AssertionFailedError,
    FrameState,
)
from mrclab.switches.v1model.expressions import (
    FieldRef,
)

ROUNDS = 256  # how often a frame, or what became of it, goes through a switch once more


class Interpreter(Controls):
    """Runs frames through a program with given entries; counters and registers last from frame to frame.

    `rules` maps table names to entries, `defaults` table names to (action, arguments) where the control plane
    has changed them. `random` draws a number from low to high, `clock` gives microseconds.
    """

    def run(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return the outgoing frames, as (port, frame), for a frame that comes in on a port."""
        self._port = port
        first = FrameState(frame, length=len(frame), received=len(frame))
        self._todo = [first]
        out = []
        while self._todo:
            self._s = self._todo.pop(0)
            with contextlib.suppress(AssertionFailedError):
                out += self._round()
        return out

    def _round(self) -> list[tuple[int, bytes]]:
        """One way through the switch, from the parser or, for an egress clone, from egress on."""
        s = self._s
        match s.kind:
            case 0:
                self._set_standard("ingress_port", self._port)
                self._set_standard("packet_length", len(s.frame))
                self._set_standard("ingress_global_timestamp", self._clock())
            case int(kind) if kind in (RECIRCULATED, RESUBMITTED):
                self._set_standard("packet_length", s.received)
                self._set_standard("instance_type", kind)
            case int(kind) if kind == INGRESS_CLONE:
                self._set_standard("ingress_port", self._port)  # for the parser only
                self._parse()
                s.fields = self._of_headers() | s.kept
                return self._session()
            case _:
                return self._session()
        return self._ingress()

    def _ingress(self) -> list[tuple[int, bytes]]:
        s = self._s
        self._parse()
        self._digest = 0
        self._verify_checksums()
        self._control(self.program.ingress)
        if s.clone is not None:
            number, fields = s.clone
            self._again(INGRESS_CLONE, s.frame, kept=self._preserved(fields), session=number)
            s.clone = None
        if self._digest in self.program.digests:
            declared = self.program.digests[self._digest]
            self.learned.append((declared.name, tuple(s.fields.get(ref, 0) for ref in declared.fields)))
        if s.resubmit:
            self._again(RESUBMITTED, s.frame, fields=self._preserved(s.resubmit))
            return []
        if group := self._standard("mcast_grp"):
            self._set_standard("instance_type", REPLICATION)
            return self._copies(self.groups.get(group, []))
        out = self._standard("egress_spec")
        self._set_standard("instance_type", 0)
        return [] if out == DROP else self._egress(out)

    def _again(self, kind: int, frame: bytes, **changes: Any) -> None:
        """Let a frame start again, unless its ancestors have done so too often."""
        s = self._s
        fresh = FrameState(frame, received=s.received, length=s.received, kind=kind, rounds=s.rounds + 1)
        if s.rounds < ROUNDS:
            self._todo.append(replace(fresh, **changes))

    def _preserved(self, number: int) -> dict[FieldRef, int]:
        fields = self.program.field_lists[number].fields if number in self.program.field_lists else ()
        return {ref: self._s.fields.get(ref, 0) for ref in fields}

    def _of_headers(self) -> dict[FieldRef, int]:
        headers = self.program.headers
        return {ref: value for ref, value in self._s.fields.items() if not headers[ref.header].metadata}

    def _session(self) -> list[tuple[int, bytes]]:
        """Return the copies of a clone session; one that is not there makes none."""
        s, session = self._s, self.sessions.get(self._s.session)
        if session is None:
            return []
        self._set_standard("instance_type", s.kind)
        self._set_standard("priority", session.class_of_service)
        if session.length:
            order = self.program.deparser.order
            head = sum(self._size(h) for h in order if s.valid.get(h))
            keep = max(session.length, head)
            s.frame, s.length = s.frame[: s.offset + keep - head], min(s.length, keep)
        return self._copies(session.copies)

    def _copies(self, copies: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
        s = self._s
        s.cut = None  # the frame was cut, not its copy
        out = []
        for port, instance in sorted(copies, key=lambda copy: (copy[1], copy[0])):
            self._s = replace(s, fields=dict(s.fields), valid=dict(s.valid), varbits=dict(s.varbits))
            self._set_standard("egress_rid", instance)
            with contextlib.suppress(AssertionFailedError):
                out += self._egress(port)
        return out

    def _egress(self, out: int) -> list[tuple[int, bytes]]:
        s = self._s
        self._set_standard("egress_port", out)
        self._set_standard("egress_spec", 0)
        self._set_standard("packet_length", s.length)
        for name in ("enq_timestamp", "egress_global_timestamp"):  # no frame ever waits here
            self._set_standard(name, self._clock())
        for name in ("enq_qdepth", "deq_timedelta", "deq_qdepth"):
            self._set_standard(name, 0)
        self._control(self.program.egress)
        if s.clone is not None:
            number, fields = s.clone
            state = {
                "valid": dict(s.valid),
                "varbits": dict(s.varbits),
                "offset": s.offset,
                "length": s.length,
            }
            kept = self._of_headers() | self._preserved(fields)
            self._again(EGRESS_CLONE, s.frame, session=number, fields=kept, **state)
            s.clone = None
        if self._standard("egress_spec") == DROP:
            return []
        self._update_checksums()
        for p in self.program.deparser.primitives:
            self._statement(p, ())
        headers = b"".join(self._emit(h) for h in self.program.deparser.order if s.valid.get(h))
        whole = headers + s.frame[s.offset :]
        if s.recirculate:
            kept, size = self._preserved(s.recirculate), len(whole)
            self._again(RECIRCULATED, whole, fields=kept, received=size, length=size)
            return []
        return [] if s.cut == 0 else [(out, whole[: s.cut])]  # BMv2 drops an empty frame
