"""Traces: every transmission on the wire and whether it arrived, from the captures at both ends.

Both captures use the same machine's clock. PSNs have 24 bits and wrap (TCP's sequence numbers have 32 bits).
So this module unwraps them: the numbers that a queue pair (connection) sent become one sequence in order of
time. An arrived number is unwrapped relative to the last number sent before it, so equal numbers at both ends
mean the same packet.

Frames are captured before the ICRC is checked. So a capture contains packets in which a link flipped a bit.
If the bit is in the PSN, the packet matches no transmission and does not count as an arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.pcap import FIRST_DATA, MRC_PORT, Opcode, Packets
from mrclab.experiments.measure.recording import ClockMap
from mrclab.topologies import Fabric, Path
from mrclab.topologies.ev_paths import hashed_path, structured_paths

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PSN_BITS = 24
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Transmissions:
    """Data packets that the sender's NIC sent, in order of time; all arrays have shape (n,).

    * ``t_ns``: monotonic ns; ``flow``: the queue pair; ``psn``: unwrapped; ``payload``: bytes.
    * ``path``: the index into the trace's paths, by the outer destination; -1 for an unknown destination.
    * ``arrived_ns``: when this transmission arrived whole at the receiver; ``NEVER`` if it did not.
    * ``trimmed``: the transmission arrived without its payload.
    * ``first_ns``: when the first whole copy of the PSN arrived.
    * ``needless``: a retransmission of a PSN of which an earlier transmission arrived whole.
    * ``frame``: the number of the frame in the capture.

    With TCP, a row is a range of bytes that no device split, and ``psn`` numbers the ranges of a connection.
    If a frame arrived in several pieces, it has a row for each piece.
    """

    t_ns: IntArray
    flow: IntArray
    psn: IntArray
    ev: IntArray
    path: IntArray
    rtx: BoolArray
    payload: IntArray
    arrived_ns: IntArray
    trimmed: BoolArray
    first_ns: IntArray
    needless: BoolArray
    frame: IntArray

    @property
    def lost(self) -> BoolArray:
        """A mask of the transmissions that arrived neither whole nor trimmed."""
        lost: BoolArray = (self.arrived_ns == NEVER) & ~self.trimmed
        return lost


@dataclass(frozen=True)
class Arrivals:
    """Data packets that arrived at the receiver, in order of time; arrays of shape (n,).

    ``first`` marks the first whole copy of each PSN. ``tx`` is the index of the matching transmission, or -1.
    """

    t_ns: IntArray
    flow: IntArray
    psn: IntArray
    ev: IntArray
    payload: IntArray
    trimmed: BoolArray
    first: BoolArray
    tx: IntArray


@dataclass(frozen=True)
class RoundTrips:
    """For each SACK that answers data: when the sender received it, and the time since the data was sent."""

    t_ns: IntArray
    rtt_ns: IntArray


@dataclass(frozen=True)
class Trace:
    """The traffic from one host to another. ``paths`` are all paths between the two hosts.

    ``paths_known`` is False if packets do not show their path, because switches chose it by a hash.
    """

    paths: tuple[Path, ...]
    sent: Transmissions
    received: Arrivals
    round_trips: RoundTrips
    clock: ClockMap
    paths_known: bool = True

    @property
    def span_ns(self) -> tuple[int, int]:
        """The times of the first and last data packet at either end (monotonic); (0, 0) without packets."""
        stamps = [a.t_ns for a in (self.sent, self.received) if len(a.t_ns)]
        if not stamps:
            return 0, 0
        return int(min(a[0] for a in stamps)), int(max(a[-1] for a in stamps))


def unwrap(psn: IntArray, bits: int = PSN_BITS) -> IntArray:
    """Return numbers of ``bits`` bits, in order of time, as a sequence that never wraps.

    Neighbours must differ by less than half of the number space (8 million packets of MRC, or 2 GiB of TCP).
    """
    if len(psn) == 0:
        return psn.astype(np.int64)
    psn = psn.astype(np.int64)
    half = 1 << bits - 1
    step = np.mod(psn[1:] - psn[:-1] + half, 2 * half) - half
    return np.concatenate([psn[:1], psn[0] + np.cumsum(step)])


def port_addresses(fabric: Fabric, host: str) -> npt.NDArray[np.void]:
    """Return the addresses of a host's NIC ports in the format of `addresses`."""
    halves = np.array([_halves(int(port.address)) for port in fabric.host(host).ports], "u8")
    return addresses(halves[:, 0], halves[:, 1])


def ways_by_ev(fabric: Fabric, src: str, dst: str, sender: Packets, routing: str) -> tuple[Path, ...]:
    """Return the path of every EV with which ``src`` sent data to ``dst``.

    Switches choose paths by bits of the EV (``routing`` structured), or else by a hash.
    """
    if routing == "structured":
        return structured_paths(fabric, src, dst)
    tx = sender.rows[sender.is_data & sender.rows["outgoing"]]
    ours = tx[np.isin(addresses(tx["dst_hi"], tx["dst_lo"]), port_addresses(fabric, dst))]
    return tuple(hashed_path(fabric, src, dst, int(ev), MRC_PORT) for ev in np.unique(ours["ev"]))


def build_trace(
    sender: Packets,
    receiver: Packets,
    paths: Sequence[Path],
    clock: ClockMap,
    fabric: Fabric | None = None,
    *,
    by_ev: bool = False,
) -> Trace:
    """Combine the captures at the two ends of ``paths`` (MRC and RoCEv2).

    The trace has the data packets from the paths' sender to their receiver. The outer destination of a packet
    shows its path. With ``by_ev``, the EV of a packet shows its path instead. With ``by_ev``, and also if
    packets have no segment lists, the addresses of the NICs' ports in ``fabric`` identify data packets. The
    trace also has the SACKs that the sender received.
    """
    tx = sender.rows[sender.is_data & sender.rows["outgoing"]]
    if by_ev:
        index_of = {path.ev: index for index, path in enumerate(paths)}
        path_index = np.array([index_of.get(ev, -1) for ev in tx["ev"].tolist()], np.int64)
    else:
        containers = {_halves(int(path.outer_dst)): index for index, path in enumerate(paths)}
        path_index = _look_up(tx["outer_hi"], tx["outer_lo"], containers)
    known = fabric is None or bool((path_index >= 0).any()) or not len(tx)
    inner = addresses(tx["dst_hi"], tx["dst_lo"])
    if known and not by_ev:
        targets = np.unique(inner[path_index >= 0])
        ours = np.isin(inner, targets)
        sources = np.unique(addresses(tx["src_hi"], tx["src_lo"])[ours])
    else:
        assert fabric is not None
        sources, targets = (port_addresses(fabric, host) for host in (paths[0].src, paths[0].dst))
        ours = np.isin(inner, targets) & np.isin(addresses(tx["src_hi"], tx["src_lo"]), sources)
        known = by_ev or not ours.any()
    tx, path_index = tx[ours], path_index[ours]

    rx = receiver.rows[receiver.is_data & ~receiver.rows["outgoing"]]
    rx = rx[np.isin(addresses(rx["src_hi"], rx["src_lo"]), sources)]
    rx = rx[np.isin(addresses(rx["dst_hi"], rx["dst_lo"]), targets)]
    sacks = sender.rows[
        (sender.rows["opcode"] == Opcode.SACK) & ~sender.rows["outgoing"] & ~sender.rows["probe_reply"]
    ]
    sacks = sacks[np.isin(addresses(sacks["dst_hi"], sacks["dst_lo"]), sources)]
    sacks = sacks[np.isin(addresses(sacks["src_hi"], sacks["src_lo"]), targets)]

    tx_t, rx_t = clock.to_monotonic(tx["t_ns"]), clock.to_monotonic(rx["t_ns"])
    tx_order, rx_order = np.argsort(tx_t, kind="stable"), np.argsort(rx_t, kind="stable")
    tx, tx_t, path_index = tx[tx_order], tx_t[tx_order], path_index[tx_order]
    rx, rx_t = rx[rx_order], rx_t[rx_order]
    n = len(tx)
    flow = np.concatenate([tx["qp"], rx["qp"]]).astype(np.int64)
    numbers = np.concatenate([tx["psn"], rx["psn"]]).astype(np.int64)
    psn = unwrap_flows(np.concatenate([tx_t, rx_t]), flow, numbers, n)
    ev = np.concatenate([tx["ev"], rx["ev"]]).astype(np.int64)
    rtx = np.concatenate([tx["rtx"], rx["rtx"]]).astype(np.int64)
    content = np.concatenate([tx["content"], rx["content"]]).view(np.int64)
    packet = codes(rank(flow), psn)
    key = codes(rank(codes(packet, rank(ev), rtx)), rank(content))
    resent = _had_earlier(rank(packet)[:n], np.ones(n, bool))  # RoCEv2 does not mark retransmissions
    sent, received = match(
        Rows(tx_t, flow[:n], psn[:n], packet[:n], key[:n]),
        Rows(rx_t, flow[n:], psn[n:], packet[n:], key[n:]),
        ev=(ev[:n], ev[n:]),
        path=path_index,
        rtx=np.where(tx["opcode"] >= FIRST_DATA, tx["rtx"], resent),
        payload=(tx["payload"].astype(np.int64), rx["payload"].astype(np.int64)),
        trimmed=rx["trimmed"].copy(),
        frame=np.arange(n),
    )
    return Trace(tuple(paths), sent, received, _round_trips(sacks, clock, tx, tx_t), clock, known)


class Rows(NamedTuple):
    """The data packets at one end, in order of time.

    All copies of a packet have the same ``packet``. All packets that cannot be distinguished have the same
    ``key``.
    """

    t_ns: IntArray
    flow: IntArray
    psn: IntArray
    packet: IntArray
    key: IntArray


def match(
    tx: Rows,
    rx: Rows,
    *,
    ev: tuple[IntArray, IntArray],
    path: IntArray,
    rtx: BoolArray,
    payload: tuple[IntArray, IntArray],
    trimmed: BoolArray,
    frame: IntArray,
) -> tuple[Transmissions, Arrivals]:
    """Match each arrival with its transmission. A transmission without an arrival was lost.

    An arrival belongs to the latest earlier transmission with the same `Rows.key` and without an arrival. If
    all such transmissions have an arrival, this arrival is a copy made by the network, and belongs to the
    latest transmission. If no earlier transmission has this key, the packet was damaged on the way.
    ``trimmed`` has a row for each arrival. An argument that is a pair has an array for transmissions and an
    array for arrivals. All other arrays are for transmissions.
    """
    n = len(tx.t_ns)
    found = latest_unmatched(tx.key, tx.t_ns, rx.key, rx.t_ns)
    found = np.where(found < 0, _latest_before(tx.key, tx.t_ns, rx.key, rx.t_ns), found)
    whole = ~trimmed & (found >= 0)
    arrived = np.full(n, NEVER, np.int64)
    np.minimum.at(arrived, found[whole], rx.t_ns[whole])
    cut = np.zeros(n, bool)
    cut[found[trimmed & (found >= 0)]] = True

    number = rank(np.concatenate([tx.packet, rx.packet]))
    earliest = np.full(int(number.max()) + 1 if len(number) else 0, NEVER, np.int64)
    np.minimum.at(earliest, number[n:][whole], rx.t_ns[whole])
    first = np.zeros(len(rx.t_ns), bool)
    copies = np.flatnonzero(whole)
    first[copies[np.unique(number[n:][whole], return_index=True)[1]]] = True
    sent = Transmissions(
        t_ns=tx.t_ns,
        flow=tx.flow,
        psn=tx.psn,
        ev=ev[0],
        path=path,
        rtx=rtx,
        payload=payload[0],
        arrived_ns=arrived,
        trimmed=cut,
        first_ns=earliest[number[:n]],
        needless=rtx & _had_earlier(number[:n], arrived != NEVER),
        frame=frame,
    )
    return sent, Arrivals(rx.t_ns, rx.flow, rx.psn, ev[1], payload[1], trimmed, first, found)


def _halves(address: int) -> tuple[int, int]:
    return address >> 64, address & (1 << 64) - 1


def addresses(hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """Return each 128-bit address as one value that can be sorted and compared."""
    pair = np.empty((len(hi), 2), ">u8")
    pair[:, 0], pair[:, 1] = hi, lo
    return np.frombuffer(pair.tobytes(), "S16") if len(hi) else np.empty(0, "S16")


def _look_up(
    hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64], table: Mapping[tuple[int, int], int]
) -> IntArray:
    """Return the table's value for every address; -1 for an address that is not in the table."""
    if len(hi) == 0:
        return np.empty(0, np.int64)
    pairs = np.empty(len(hi), [("hi", "u8"), ("lo", "u8")])
    pairs["hi"], pairs["lo"] = hi, lo
    different, which = np.unique(pairs, return_inverse=True)
    values = [table.get((int(pair["hi"]), int(pair["lo"])), -1) for pair in different]
    return np.array(values, np.int64)[which.reshape(-1)]


def unwrap_flows(t_ns: IntArray, flow: IntArray, psn: IntArray, sent: int, bits: int = PSN_BITS) -> IntArray:
    """Unwrap the PSNs at the sender and at the receiver, flow by flow.

    The first ``sent`` elements of the arrays are sent packets, and the others are arrived packets. The PSNs
    of the sent packets become one sequence in order of time. The PSN of each arrived packet is unwrapped
    relative to the last PSN that was sent before the arrival.
    """
    half = 1 << bits - 1
    side = (np.arange(len(t_ns)) >= sent).astype(np.int8)
    order = np.lexsort((side, t_ns))
    result = np.empty(len(psn), np.int64)
    for qp in np.unique(flow):
        chosen = order[flow[order] == qp]
        out = chosen < sent
        if not out.any():
            result[chosen] = unwrap(psn[chosen], bits)
            continue
        numbers = unwrap(psn[chosen[out]], bits)
        result[chosen[out]] = numbers
        last = numbers[np.maximum(np.cumsum(out)[~out] - 1, 0)]
        came = psn[chosen[~out]].astype(np.int64)
        result[chosen[~out]] = last + np.mod(came - last + half, 2 * half) - half
    return result


def _had_earlier(group: IntArray, marked: BoolArray) -> BoolArray:
    """Return a mask of the rows that come after a marked row of the same group."""
    order = np.lexsort((np.arange(len(group)), group))
    sorted_group = group[order]
    place = np.arange(len(order))
    last = np.maximum.accumulate(np.where(marked[order], place, -1)) if len(order) else place
    before = np.concatenate([[-1], last[:-1]]) if len(order) else place
    hit = (before >= 0) & (sorted_group[np.maximum(before, 0)] == sorted_group)
    result = np.zeros(len(group), bool)
    result[order] = hit
    return result


def rank(values: IntArray) -> IntArray:
    """Return each value's rank among the distinct values."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def codes(*columns: IntArray) -> IntArray:
    """Return one number for each row, equal for rows with equal columns. Shape (n,).

    Raise OverflowError if the columns' ranges together need more than 63 bits.
    """
    code = np.zeros(len(columns[0]), np.int64)
    size = 1
    for column in columns:
        low = int(column.min()) if len(column) else 0
        width = int(column.max()) - low + 1 if len(column) else 1
        size *= width
        if size >= 1 << 63:
            raise OverflowError("the capture's PSNs and EVs spread too far to be matched")
        code = code * width + (column - low)
    return code


def _latest_before(key: IntArray, t_ns: IntArray, wanted: IntArray, wanted_t_ns: IntArray) -> IntArray:
    """Return, for each wanted (key, time), the index of the key's latest entry up to that time, or -1."""
    n = len(key)
    both = np.concatenate([key, wanted])
    is_wanted = np.arange(len(both)) >= n
    order = np.lexsort((is_wanted, np.concatenate([t_ns, wanted_t_ns]), both))
    place = np.arange(len(order))
    last = np.maximum.accumulate(np.where(is_wanted[order], -1, place)) if len(order) else place
    asked = is_wanted[order]
    found = order[np.maximum(last, 0)]
    hit = (last >= 0) & (both[found] == both[order])
    result = np.full(len(wanted), -1, np.int64)
    result[order[asked] - n] = np.where(hit, found, -1)[asked]
    return result


def latest_unmatched(key: IntArray, t_ns: IntArray, wanted: IntArray, wanted_t_ns: IntArray) -> IntArray:
    """Match each wanted (key, time) with the latest unmatched entry of the same key that is not later.

    Wanted pairs are matched in order of time. Return the index of each entry, or -1 for a pair without an
    entry. The algorithm matches brackets: an entry opens a bracket, a wanted pair closes the last open
    bracket.
    """
    n = len(key)
    both = np.concatenate([key, wanted])
    closes = np.arange(len(both)) >= n
    order = np.lexsort((closes, np.concatenate([t_ns, wanted_t_ns]), both))
    group, closing = both[order], closes[order]
    depth = np.cumsum(np.where(closing, -1, 1))
    level = depth + closing  # an entry and its match get the same level, like brackets
    by_level = np.lexsort((np.arange(len(order)), level, group))
    previous = np.concatenate([by_level[:1], by_level[:-1]])
    paired = closing[by_level] & ~closing[previous]
    paired &= (group[by_level] == group[previous]) & (level[by_level] == level[previous])
    result = np.full(len(wanted), -1, np.int64)
    result[order[by_level[paired]] - n] = order[previous[paired]]
    return result


def _round_trips(
    sacks: npt.NDArray[np.void], clock: ClockMap, tx: npt.NDArray[np.void], tx_t: IntArray
) -> RoundTrips:
    """Return the times from a data packet to the SACK that names its PSN and EV.

    Data and SACKs have different queue pair numbers, so the numbers are not compared. Two queue pairs almost
    never have the same PSN and EV in flight, so a wrong match does not change a median.
    """
    t_ns = clock.to_monotonic(sacks["t_ns"])
    order = np.argsort(t_ns, kind="stable")
    sacks, t_ns = sacks[order], t_ns[order]
    psn = np.concatenate([tx["psn"], sacks["echo_psn"]]).astype(np.int64)
    ev = np.concatenate([tx["ev"], sacks["echo_ev"]]).astype(np.int64)
    key = codes(psn, rank(ev))
    match = _latest_before(key[: len(tx)], tx_t, key[len(tx) :], t_ns)
    found = match >= 0
    return RoundTrips(t_ns[found], t_ns[found] - tx_t[match[found]])
