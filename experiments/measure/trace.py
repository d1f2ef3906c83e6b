"""What happened on the wire, put together from both captures: every transmission and what became of it.

Both captures are on the machine's one clock. PSNs are 24 bits and wrap: the packets of both ends are put in
order of time and unwrapped as one sequence per queue pair, so that a PSN means the same at both ends for
ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.measure.clock import ClockMap
from experiments.measure.pcap import Opcode, Packets
from topologies import Path

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]

PSN_BITS = 24
_PSN_MOD = 1 << PSN_BITS
_PSN_HALF = _PSN_MOD >> 1
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Transmissions:
    """Data packets sent at the sender's NIC, in order of time; all arrays have shape (n,).

    ``t_ns`` monotonic; ``flow`` identifies the queue pair, ``psn`` is unwrapped; ``path`` is the index into
    the trace's paths by the outer destination on the wire, -1 where that is none of them; ``payload`` in
    bytes; ``arrived_ns`` is when this very transmission came in at the receiver whole, ``NEVER`` where it
    did not; ``trimmed`` where it came in without its payload; ``first_ns`` when the first whole copy of its
    PSN arrived; ``needless`` marks a retransmission although an earlier transmission of that PSN arrived
    whole.
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

    @property
    def lost(self) -> BoolArray:
        """Which came in neither whole nor trimmed."""
        lost: BoolArray = (self.arrived_ns == NEVER) & ~self.trimmed
        return lost


@dataclass(frozen=True)
class Arrivals:
    """Data packets that came in at the receiver, in order of time; arrays of shape (n,).

    ``first`` marks the first whole copy of each PSN. ``tx`` is the index of the transmission, -1 where the
    capture at the sender has none such.
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
    """For each SACK at the sender that answers data: when it came (monotonic) and the time since the data."""

    t_ns: IntArray
    rtt_ns: IntArray


@dataclass(frozen=True)
class Trace:
    """A run on the wire. ``paths`` are all ways from sender to receiver; an index means a place in it."""

    paths: tuple[Path, ...]
    sent: Transmissions
    received: Arrivals
    round_trips: RoundTrips
    clock: ClockMap

    @property
    def span_ns(self) -> tuple[int, int]:
        """First and last stamp of data at either end (monotonic); (0, 0) where there is none."""
        stamps = [a.t_ns for a in (self.sent, self.received) if len(a.t_ns)]
        if not stamps:
            return 0, 0
        return int(min(a[0] for a in stamps)), int(max(a[-1] for a in stamps))


def unwrap(psn: IntArray) -> IntArray:
    """24-bit PSNs of one queue pair in order of time, as a sequence without end from the first on.

    Right as long as neighbours are less than half the space (8 million packets) apart.
    """
    if len(psn) == 0:
        return psn.astype(np.int64)
    psn = psn.astype(np.int64)
    step = np.mod(psn[1:] - psn[:-1] + _PSN_HALF, _PSN_MOD) - _PSN_HALF
    return np.concatenate([psn[:1], psn[0] + np.cumsum(step)])


def build_trace(sender: Packets, receiver: Packets, paths: Sequence[Path], clock: ClockMap) -> Trace:
    """Puts the captures at the two ends together.

    Keeps the data of ``paths``' sender and receiver, known by the NICs' inner addresses where the paths are
    told apart by them, and by the outer destinations otherwise; SACKs are those that came in at the sender.
    """
    tx = sender.rows[sender.is_data & sender.rows["outgoing"]]
    containers = {_halves(int(path.outer_dst)): index for index, path in enumerate(paths)}
    path_index = _look_up(tx["outer_hi"], tx["outer_lo"], containers)
    targets = np.unique(_address(tx["dst_hi"], tx["dst_lo"])[path_index >= 0])
    ours = np.isin(_address(tx["dst_hi"], tx["dst_lo"]), targets)
    tx, path_index = tx[ours], path_index[ours]
    sources = np.unique(_address(tx["src_hi"], tx["src_lo"]))

    rx = receiver.rows[receiver.is_data & ~receiver.rows["outgoing"]]
    rx = rx[np.isin(_address(rx["src_hi"], rx["src_lo"]), sources)]
    rx = rx[np.isin(_address(rx["dst_hi"], rx["dst_lo"]), targets)]
    sacks = sender.rows[
        (sender.rows["opcode"] == Opcode.SACK) & ~sender.rows["outgoing"] & ~sender.rows["probe_reply"]
    ]
    sacks = sacks[np.isin(_address(sacks["dst_hi"], sacks["dst_lo"]), sources)]

    tx_t, rx_t = clock.to_monotonic(tx["t_ns"]), clock.to_monotonic(rx["t_ns"])
    tx_order, rx_order = np.argsort(tx_t, kind="stable"), np.argsort(rx_t, kind="stable")
    tx, tx_t, path_index = tx[tx_order], tx_t[tx_order], path_index[tx_order]
    rx, rx_t = rx[rx_order], rx_t[rx_order]
    flow = np.concatenate([tx["qp"], rx["qp"]]).astype(np.int64)
    psn = _unwrap_flows(
        np.concatenate([tx_t, rx_t]), flow, np.concatenate([tx["psn"], rx["psn"]]).astype(np.int64), len(tx)
    )
    n = len(tx)
    ev = np.concatenate([tx["ev"], rx["ev"]]).astype(np.int64)
    rtx = np.concatenate([tx["rtx"], rx["rtx"]]).astype(np.int64)
    packet = _codes(_rank(flow), psn)
    key = _codes(packet, _rank(ev), rtx)
    match = _latest_before(key[:n], tx_t, key[n:], rx_t)

    whole = ~rx["trimmed"]
    arrived = np.full(n, NEVER, np.int64)
    np.minimum.at(arrived, match[(match >= 0) & whole], rx_t[(match >= 0) & whole])
    trimmed = np.zeros(n, bool)
    trimmed[match[(match >= 0) & ~whole]] = True

    number = _rank(packet)
    earliest = np.full(int(number.max()) + 1 if len(number) else 0, NEVER, np.int64)
    np.minimum.at(earliest, number[n:][whole], rx_t[whole])
    first = np.zeros(len(rx), bool)
    copies = np.flatnonzero(whole)
    first[copies[np.unique(number[n:][whole], return_index=True)[1]]] = True

    sent = Transmissions(
        t_ns=tx_t,
        flow=flow[:n],
        psn=psn[:n],
        ev=ev[:n],
        path=path_index,
        rtx=tx["rtx"].copy(),
        payload=tx["payload"].astype(np.int64),
        arrived_ns=arrived,
        trimmed=trimmed,
        first_ns=earliest[number[:n]],
        needless=tx["rtx"] & _had_earlier(number[:n], arrived != NEVER),
    )
    received = Arrivals(
        t_ns=rx_t,
        flow=flow[n:],
        psn=psn[n:],
        ev=ev[n:],
        payload=rx["payload"].astype(np.int64),
        trimmed=rx["trimmed"].copy(),
        first=first,
        tx=match,
    )
    return Trace(tuple(paths), sent, received, _round_trips(sacks, clock, tx, tx_t), clock)


def _halves(address: int) -> tuple[int, int]:
    return address >> 64, address & (1 << 64) - 1


def _address(hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """128-bit addresses as one sortable, comparable value each."""
    pair = np.empty((len(hi), 2), ">u8")
    pair[:, 0], pair[:, 1] = hi, lo
    return np.frombuffer(pair.tobytes(), "S16") if len(hi) else np.empty(0, "S16")


def _look_up(
    hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64], table: Mapping[tuple[int, int], int]
) -> IntArray:
    """The table's value for every address, -1 where it has none. There are few different addresses."""
    if len(hi) == 0:
        return np.empty(0, np.int64)
    pairs = np.empty(len(hi), [("hi", "u8"), ("lo", "u8")])
    pairs["hi"], pairs["lo"] = hi, lo
    different, which = np.unique(pairs, return_inverse=True)
    values = [table.get((int(pair["hi"]), int(pair["lo"])), -1) for pair in different]
    return np.array(values, np.int64)[which.reshape(-1)]


def _unwrap_flows(t_ns: IntArray, flow: IntArray, psn: IntArray, sent: int) -> IntArray:
    """Unwraps both ends' PSNs together, per queue pair, in order of time (the sender first on a tie)."""
    side = (np.arange(len(t_ns)) >= sent).astype(np.int8)
    order = np.lexsort((side, t_ns))
    result = np.empty(len(psn), np.int64)
    for qp in np.unique(flow):
        chosen = order[flow[order] == qp]
        result[chosen] = unwrap(psn[chosen])
    return result


def _had_earlier(group: IntArray, marked: BoolArray) -> BoolArray:
    """Which rows come after a marked row of their own group."""
    order = np.lexsort((np.arange(len(group)), group))
    sorted_group = group[order]
    place = np.arange(len(order))
    last = np.maximum.accumulate(np.where(marked[order], place, -1)) if len(order) else place
    before = np.concatenate([[-1], last[:-1]]) if len(order) else place
    hit = (before >= 0) & (sorted_group[np.maximum(before, 0)] == sorted_group)
    result = np.zeros(len(group), bool)
    result[order] = hit
    return result


def _rank(values: IntArray) -> IntArray:
    """Each value's place among the different ones."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _codes(*columns: IntArray) -> IntArray:
    """One number for each row, equal where all columns are. Shape (n,).

    Raises OverflowError where the columns' ranges together need more than 63 bits.
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
    """For each wanted (key, time) the index of the latest entry of that key not later than it, else -1."""
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


def _round_trips(sacks: Rows, clock: ClockMap, tx: Rows, tx_t: IntArray) -> RoundTrips:
    """From the data packet that a SACK names by PSN and EV to that SACK.

    A SACK goes to the other queue pair number than data does, so queue pairs are not compared; packets of two
    queue pairs with one PSN and EV in flight at a time are too rare to bend a median.
    """
    t_ns = clock.to_monotonic(sacks["t_ns"])
    order = np.argsort(t_ns, kind="stable")
    sacks, t_ns = sacks[order], t_ns[order]
    psn = np.concatenate([tx["psn"], sacks["echo_psn"]]).astype(np.int64)
    ev = np.concatenate([tx["ev"], sacks["echo_ev"]]).astype(np.int64)
    key = _codes(psn, _rank(ev))
    match = _latest_before(key[: len(tx)], tx_t, key[len(tx) :], t_ns)
    found = match >= 0
    return RoundTrips(t_ns[found], t_ns[found] - tx_t[match[found]])
