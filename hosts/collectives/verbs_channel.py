"""The channel over the verbs API, and a function that opens the channels of any transport on a host.

Puts are RDMA WRITEs with immediate data. If there are several queue pairs to a peer, each put has one part
for each of them, and the peer counts the parts. The immediate holds the tag and the number of parts.
``open_channels`` opens channels in the host's namespace from a transport's kind and options, including
channels over the kernel's sockets.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from mrclab.hosts.clustermapper.denylist import apply_denylist
from mrclab.hosts.collectives.channel import TAG_BITS, Arrived, Channel, ChannelEvent, Done, Turn, on_one_host
from mrclab.hosts.eventlog import write_log
from mrclab.hosts.mrc.events import EvReplaced, EvRestored, EvRetired, EvSkipped
from mrclab.hosts.observation import KINDS, event_record, path_rows
from mrclab.hosts.rdma.events import Event, LossReason, PacketLost
from mrclab.hosts.schemes.registry import find_object
from mrclab.hosts.transports import endpoint_options, find_kind, random_of
from mrclab.hosts.verbs import Context, MemoryRegion, Opcode, QueuePair, WorkCompletion
from mrclab.topologies import Fabric

MAX_QPS = 1 << (32 - TAG_BITS)
TAG_MASK = (1 << TAG_BITS) - 1
MIN_PART_BYTES = 4096
_TRIMMED = (LossReason.TRIMMED, LossReason.TRIMMED_LASTHOP)
_EV_EVENTS: dict[str, type[EvRetired | EvReplaced | EvRestored | EvSkipped]] = {
    "retired": EvRetired,
    "replaced": EvReplaced,
    "restored": EvRestored,
    "skipped": EvSkipped,
}


@dataclass(slots=True)
class _Put:
    """A put in flight, and the number of its parts that are not acknowledged yet."""

    peer: int
    left: int


class VerbsChannel:
    """A channel whose puts are writes over a context's queue pairs. Each peer has ``qps`` queue pairs."""

    def __init__(self, context: Context, rank: int, qps: int = 1) -> None:
        if not 1 <= qps <= MAX_QPS:
            raise ValueError(f"queue pairs to a peer: 1 to {MAX_QPS}, not {qps}")
        self._context = context
        self._rank = rank
        self._count = qps
        self._cq = context.create_cq()
        self._regions: list[MemoryRegion] = []
        self._qps: dict[int, list[QueuePair]] = {}
        self._peer_of: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self._remote: dict[int, list[tuple[int, int]]] = {}
        self._puts: dict[int, _Put] = {}
        self._parts: dict[tuple[int, int], tuple[int, int]] = {}
        self._tickets = 0
        self._ready: deque[ChannelEvent] = deque()
        self._log: list[Event] = []
        self._told = 0
        """Number of events in ``_log`` that `news` has already returned."""

    def expose(self, buffer: memoryview) -> int:
        """See Channel."""
        self._regions.append(self._context.reg_mr(buffer))
        return len(self._regions) - 1

    def attributes(self, peer: int) -> dict[str, Any]:
        """See Channel."""
        if peer not in self._qps:
            self._qps[peer] = [self._context.create_qp(self._cq) for _ in range(self._count)]
            self._peer_of |= {qp.qp_num: peer for qp in self._qps[peer]}
        return {
            "qps": [qp.attributes() for qp in self._qps[peer]],
            "regions": [{"address": r.address, "rkey": r.rkey} for r in self._regions],
        }

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """See Channel. Raise KeyError, TypeError or ValueError if ``attributes`` is not valid."""
        for qp, remote in zip(self._qps[peer], attributes["qps"], strict=True):
            qp.connect(remote)
        self._hosts[peer] = attributes["qps"][0]["host"]
        self._remote[peer] = [(r["address"], r["rkey"]) for r in attributes["regions"]]

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """See Channel."""
        address, rkey = self._remote[peer][region]
        parts = _cut(len(data), self._count)
        ticket = self._tickets
        self._tickets += 1
        self._puts[ticket] = _Put(peer, len(parts))
        imm = (len(parts) - 1) << TAG_BITS | tag & TAG_MASK
        # The tag selects the first queue pair. So small puts, with one part each, use different queue pairs.
        qps = self._qps[peer]
        for number, (start, end) in enumerate(parts):
            qp = qps[(tag + number) % len(qps)]
            qp.post_write_imm(ticket, data[start:end], address + offset + start, rkey, imm)
        return ticket

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """See Channel."""
        readable = self._context.progress(until_ns if not len(self._cq) else 0, others)
        self.collect()
        return readable

    def collect(self) -> None:
        """Process the NIC's completions and events. They may have occurred during another channel's turn.

        Channels that share the NIC share its events. The first channel that calls this function logs the
        events that are not completions.
        """
        while len(self._cq):
            for completion in self._cq.take():
                self._complete(completion)
        asynchronous = self._context.async_events
        while asynchronous:
            self._log.append(asynchronous.popleft())

    def _complete(self, completion: WorkCompletion) -> None:
        peer = self._peer_of[completion.qp_num]
        if completion.opcode is Opcode.RDMA_WRITE:
            assert completion.wr_id is not None
            put = self._puts.get(completion.wr_id)
            if put is None:  # an earlier part of this put has failed
                return
            put.left -= 1
            if not completion.ok or put.left == 0:
                del self._puts[completion.wr_id]
                error = None if completion.ok else completion.status.value
                self._ready.append(Done(peer, completion.wr_id, completion.t_ns, error))
            return
        assert completion.imm_data is not None
        tag, parts = completion.imm_data & TAG_MASK, (completion.imm_data >> TAG_BITS) + 1
        length = completion.byte_len
        if parts > 1:
            came, so_far = self._parts.pop((peer, tag), (0, 0))
            length += so_far
            if came + 1 < parts:
                self._parts[peer, tag] = (came + 1, length)
                return
        self._ready.append(Arrived(peer, tag, length, completion.t_ns))

    def events(self) -> list[ChannelEvent]:
        """See Channel."""
        found = list(self._ready)
        self._ready.clear()
        return found

    def bytes_delivered(self) -> int:
        """See Channel."""
        # This must be fast, because it is called many times a second, for up to hundreds of queue pairs.
        return sum(map(self._context.device.endpoint.bytes_placed, self._peer_of))

    def counters(self) -> dict[str, int]:
        """See Channel."""
        found = [self._context.device.endpoint.qp_counters(number) for number in self._peer_of]
        return {
            "sent_packets": sum(c.sent for c in found),
            "retransmitted_packets": sum(c.retransmitted for c in found),
            "placed_packets": sum(c.placed for c in found),
            "duplicate_packets": sum(c.duplicates for c in found),
            "ce_packets": sum(c.ce_received for c in found),
            "socket_drops": self._context.device.drops(),
        }

    def event_columns(self) -> dict[str, list[int]]:
        """See Channel."""
        lost = [event for event in self._log if isinstance(event, PacketLost)]
        columns = {
            "lost_ns": [event.t_ns for event in lost],
            "lost_sent_ns": [event.sent_ns for event in lost],
            "lost_ev": [event.ev for event in lost],
            "lost_qpn": [event.qpn for event in lost],
            "lost_trimmed": [int(event.reason in _TRIMMED) for event in lost],
        }
        for name, kind in _EV_EVENTS.items():
            found = [event for event in self._log if isinstance(event, kind)]
            columns |= {f"{name}_ns": [e.t_ns for e in found], f"{name}_ev": [e.ev for e in found]}
            columns[f"{name}_qpn"] = [e.qpn for e in found]
        columns["replaced_new_ev"] = [e.new_ev for e in self._log if isinstance(e, EvReplaced)]
        return columns

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """See Channel."""
        endpoint = self._context.device.endpoint
        new, self._told = self._log[self._told :], len(self._log)
        if forget:
            self._log, self._told = [], 0
        return {
            "placed": {
                str(peer): sum(endpoint.bytes_placed(qp.qp_num) for qp in qps)
                for peer, qps in self._qps.items()
            },
            "events": [event_record(event) for event in new if isinstance(event, KINDS)],
            "paths": [row for qp in self._qps.get(paths_to, ()) for row in path_rows(endpoint, qp.qp_num)]
            if paths_to is not None
            else [],
        }

    def deny(self, links: Collection[str]) -> None:
        """See Channel. On a transport without EVs this does nothing."""
        context = self._context
        for peer, qps in self._qps.items():
            for qp in qps if peer in self._hosts else ():
                ends = (context.host, self._hosts[peer])
                if len(set(ends)) > 1:
                    device = context.device
                    apply_denylist(device.endpoint, qp.qp_num, context.fabric, *ends, links, device.now())

    def save_log(self, path: Path) -> int:
        """See Channel."""
        write_log(self._log, path, self._context.host)
        return len(self._log)

    def close(self) -> None:
        """See Channel."""
        self._context.close()


def _cut(length: int, parts: int) -> list[tuple[int, int]]:
    """Return start and end of each part of a put. Parts begin at multiples of MIN_PART_BYTES."""
    parts = max(1, min(parts, length // MIN_PART_BYTES))
    step = -(-length // parts)
    step = -(-step // MIN_PART_BYTES) * MIN_PART_BYTES if parts > 1 else step
    cuts = [(start, min(start + step, length)) for start in range(0, length, max(1, step))]
    return cuts or [(0, 0)]


def open_channels(
    kind: str,
    fabric: Fabric,
    host: str,
    ranks: Sequence[int],
    options: Mapping[str, Any],
    seed: int,
    propagation_ns: int = 0,
) -> tuple[Sequence[Channel], Turn]:
    """Open a channel for each rank of a host. Return the channels in order, and one ``turn`` for all of them.

    The calling thread must be in the host's network namespace. The NIC delays all received frames by
    ``propagation_ns``. Raise ValueError if the kind does not exist, or if there are several ranks and the
    transport uses the kernel's sockets. Raise TypeError or ValueError for an unknown option or a bad value.
    """
    core = find_kind(kind)
    if core.config is None:
        if len(ranks) > 1:
            raise ValueError(f"{len(ranks)} ranks on {host}: the kernel's NIC takes only one")
        channel: Channel = _opener(core.channel)(fabric, host, ranks[0], **options)
        return [channel], channel.turn
    given = endpoint_options(kind, options)
    config = core.longer(core.config(fabric, host, given), given, propagation_ns)
    context = Context.open(fabric, host, config, random_of(seed, host), propagation_ns)
    channels = {rank: VerbsChannel(context, rank, channel_qps(kind, options)) for rank in ranks}
    if len(ranks) == 1:
        return list(channels.values()), channels[ranks[0]].turn

    def turn(until_ns: int | None, others: Collection[int]) -> Collection[int]:
        readable = context.progress(until_ns, others)
        for channel in channels.values():
            channel.collect()
        return readable

    return on_one_host(channels, turn)


def channel_qps(kind: str, options: Mapping[str, Any]) -> int:
    """Return the number of queue pairs over which a channel splits each put.

    For RoCEv2 this number is 1, because the endpoint has the option `qps` and distributes messages over queue
    pairs itself.
    """
    return int(options.get("qps", 1)) if find_kind(kind).stripes else 1


def check_options(kind: str, fabric: Fabric, options: Mapping[str, Any]) -> None:
    """Raise ValueError, with a message of one line, for an unknown option or a bad value.

    This function opens no NIC and needs no namespace.
    """
    host, core = fabric.hosts[0].name, find_kind(kind)
    try:
        if core.config is not None:
            core.config(fabric, host, endpoint_options(kind, options))
        else:
            signature(_opener(core.channel)).bind(fabric, host, 0, **options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        raise ValueError(
            f"there is no option '{unknown[1]}'" if unknown else f"a value is of the wrong kind ({error})"
        ) from None


def _opener(name: str) -> Any:
    """Return the function with this name, which opens a channel over the kernel's sockets."""
    return find_object(name, "")
