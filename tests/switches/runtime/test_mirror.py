"""A program that clones frames but has no multicast. It mirrors frames to a monitor."""

from __future__ import annotations

from pathlib import Path

import pytest
from finsy.proto import p4r

from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import DATA, Namespace, read_p4info, receive, three_ports

pytestmark = [pytest.mark.root, pytest.mark.parallel]
INGRESS_CLONE = 1  # the value of PKT_INSTANCE_TYPE_INGRESS_CLONE in v1model


@pytest.mark.parametrize("target", TARGETS)
def test_frames_are_mirrored(target: str, namespace: Namespace, tmp_path: Path) -> None:
    with three_ports(target, namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline((DATA / "mirror.json").read_bytes(), read_p4info(DATA / "mirror.p4info.txtpb"))
        session = p4r.Update(type=p4r.Update.INSERT)
        entry = session.entity.packet_replication_engine_entry.clone_session_entry
        entry.session_id = 5
        entry.replicas.add(egress_port=3, instance=1)
        client.write(session)
        sockets = {i: namespace.packet_socket(f"h{i}") for i in (1, 2, 3)}
        for a in (1, 0, 1):
            sockets[1].send(bytes([a, 9]).ljust(60, b"\7"))
        assert [f[:2] for f in receive(sockets[2], 3)] == [b"\1\0", b"\0\0", b"\1\0"]
        assert [f[:2] for f in receive(sockets[3], 2)] == [bytes([1, INGRESS_CLONE])] * 2
        assert receive(sockets[3], 1, 0.2) == []
        for s in sockets.values():
            s.close()
