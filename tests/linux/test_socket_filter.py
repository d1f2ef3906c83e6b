"""Packet sockets with a filter, which drops frames in the kernel."""

import socket

import pytest

from mrclab.hosts.nic.ports import ETH_P_IPV6
from mrclab.linux.bpf import attach_filter, udp_filter
from tests.support.switch_kit import Namespace, ipv6_frame, probe_frame, receive

pytestmark = pytest.mark.root


def test_a_udp_filter_lets_through_one_port_and_cuts_frames() -> None:
    namespace = Namespace()
    try:
        namespace.pair("h1", "h2")

        def filtered() -> socket.socket:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IPV6))
            attach_filter(opened, udp_filter(4799, 100))
            return opened

        with namespace.packet_socket("h1") as sender, namespace.run(filtered) as receiver:
            probe = probe_frame(1, encapsulated=False)
            other_port = probe[:56] + (4800).to_bytes(2, "big") + probe[58:]
            for frame in (ipv6_frame(1), other_port, probe_frame(1), probe):
                sender.send(frame)
            assert receive(receiver, 2, 0.5) == [probe[:100]]
    finally:
        namespace.delete()
