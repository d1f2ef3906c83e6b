"""The delays of a topology's links, where the kernel has no netem: one process for all of them."""

from __future__ import annotations

from mrclab.testbed import links
from mrclab.testbed.delays.long_wire import LongWires, WireEnd
from mrclab.testbed.links import Cable
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.topologies import Fabric


def wire_ends(cable: Cable, delay_ns: int) -> tuple[WireEnd, ...]:
    """Return the ends of a cable that takes longer, each way, by a delay."""
    mtu_bytes = cable.link.profile.mtu_bytes
    return tuple(WireEnd(end.namespace, end.ifname, mtu_bytes, delay_ns) for end in (cable.a, cable.b))


def lengthen(fabric: Fabric, names: Names, run_id: str, *, routers: bool, egress: bool) -> LongWires | None:
    """Make the links of a fabric that is laid as long as its topology says; return what to close at the end.

    Return None if there is nothing to do: no link has a delay, or the kernel keeps it. Frames are held
    back at ingress or, with ``egress``, at egress. Raise MachineError if the kernel can do neither.
    """
    long = [cable for cable in links.cables(fabric, names, routers=routers) if cable.link.profile.delay_ns]
    if not long or links.has_netem():
        return None
    ends = [end for cable in long for end in wire_ends(cable, cable.link.profile.delay_ns)]
    wires = LongWires(ends, egress=egress, variables={RUN_VARIABLE: run_id})
    try:
        wires.begin()
    except BaseException:
        wires.kill()
        raise
    return wires
