"""Find the link that carries the traffic, in the kernel's table of interfaces."""

from mrclab.experiments.run.link_bytes import DEVICES, busiest_link, carried_by_interface
from mrclab.topologies import load_fabric

TEXT = """Inter-|   Receive                 |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier
    lo: 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28
p0-t0-0-eth3:  1500    3  0  0  0   0     0     0    9000   6   0   0   0   0   0   0
"""


def test_bytes_are_those_that_an_interface_has_sent_and_received() -> None:
    assert carried_by_interface(TEXT) == {"lo": (21, 11), "p0-t0-0-eth3": (9000, 1500)}


def test_this_kernel_writes_that_form() -> None:
    text = DEVICES.read_text(encoding="utf-8")
    assert text.splitlines()[1].split("|")[2].split()[0] == "bytes"
    assert len(text.splitlines()[2].partition(":")[2].split()) == 16
    assert "lo" in carried_by_interface(text)


def test_the_busiest_link_is_the_one_whose_ends_sent_most() -> None:
    fabric = load_fabric("tiny")
    link = next(link for link in fabric.links if link.kind == "fabric" and link.plane == 1)
    other = next(link for link in fabric.links if link.kind == "fabric" and link.plane == 0)
    before = {link.a.ifname: 5000, other.a.ifname: 9000}
    after = {link.a.ifname: 5600, link.b.ifname: 500, other.a.ifname: 10_000}
    assert busiest_link(fabric, before, after, {link.name, other.name}) == link.name
    assert busiest_link(fabric, before, after, {other.name}) == other.name
