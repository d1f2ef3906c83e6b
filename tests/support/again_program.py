"""Frames and clone sessions for the test program `again`, which recirculates its frames."""

from __future__ import annotations

import struct

from finsy.proto import p4r

from mrclab.switches.p4_model import CloneSession

WAY = struct.Struct("!BBBBBBBHHHHHIB")


def frame(op: int, session: int = 1, count: int = 0, fields: int = 0, payload: bytes = bytes(40)) -> bytes:
    return WAY.pack(op, session, count, fields, *bytes(10)) + payload


def session_update(number: int, session: CloneSession, kind: int = p4r.Update.INSERT) -> p4r.Update:
    update = p4r.Update(type=kind)  # type: ignore[arg-type]
    entry = update.entity.packet_replication_engine_entry.clone_session_entry
    entry.session_id, entry.packet_length_bytes = number, session.length
    entry.class_of_service = session.class_of_service
    for port, instance in session.copies:
        entry.replicas.add(egress_port=port, instance=instance)
    return update
