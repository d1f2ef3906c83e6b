"""The process of ``long_wire``. It receives frames at the ends of links, and returns the frames later.

For each end of a link, this process makes a veth pair. One half of the pair is in the namespace of the end,
the other half in the namespace of this process. The process has a packet socket on its half. At the end of
the link, a first BPF program redirects arriving frames into the pair, so that they reach the socket. A second
BPF program is on the half in the namespace of the end. It sets skb->mark of the returned frames and redirects
them to the end. The first program does not redirect frames with this skb->mark. With ``egress``, the first
program redirects the frames that leave at the end instead. The order of frames is kept.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from mrclab.hosts.nic.ports import (
    RECEIVE_BUFFER_BYTES,
    SO_RCVBUFFORCE,
    SOL_PACKET,
    DelayLine,
    Frame,
    sharpen_timers,
)
from mrclab.linux import bpf, namespaces, rtnetlink
from mrclab.linux import bpf_types as insn
from mrclab.linux.errors import MachineError
from mrclab.linux.scheduling import before_others
from mrclab.testbed.delays.long_wire import WireEnd
from mrclab.testbed.links import GROUP

MARK = 0x6D726377
_MARK_OFFSET = 8  # offset of the field `mark` in struct __sk_buff
_EGRESS, _INGRESS = 0, 1  # flags of bpf_redirect
_NEXT = -1  # TCX_NEXT: the frame continues as usual
_PACKET_IGNORE_OUTGOING, _ETH_P_ALL = 23, 3
_FIRST_INDEX = 2_000_000
_THREADS = 32
_BATCH, _ROOM_BYTES = 64, 65536
STDIN, STDOUT = 0, 1

T = TypeVar("T")
R = TypeVar("R")


def _set_mark(value: int) -> bytes:
    return insn.put(2, value) + insn.store_word(insn.CONTEXT, _MARK_OFFSET, 2)


def _redirect(ifindex: int, flags: int) -> bytes:
    return insn.put(1, ifindex) + insn.put(2, flags) + insn.call(insn.REDIRECT) + insn.leave()


def lead_aside(ifindex: int) -> bytes:
    """Return the program for a link's end: it redirects frames to ``ifindex``, unless skb->mark is MARK."""
    return (
        insn.load_word(2, insn.CONTEXT, _MARK_OFFSET)
        + insn.unless_equal(2, MARK, _redirect(ifindex, 0))
        + _set_mark(0)
        + insn.leave(_NEXT)
    )


def hand_back(ifindex: int, *, egress: bool) -> bytes:
    """Return the program for a veth pair's half: it sets skb->mark and redirects frames to ``ifindex``."""
    return _set_mark(MARK) + _redirect(ifindex, _EGRESS if egress else _INGRESS)


class Relay:
    """A relay that delays frames at links' ends. Raise OSError or MachineError if the kernel refuses."""

    def __init__(self, ends: Sequence[WireEnd], *, egress: bool) -> None:
        self._egress = egress
        self._lines = {delay_ns: DelayLine(delay_ns) for delay_ns in {end.delay_ns for end in ends}}
        self._line_of = [self._lines[end.delay_ns] for end in ends]
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._programs: list[tuple[WireEnd, int, int]] = []
        self._links: list[int] = []
        self._sockets: list[socket.socket] = []
        self._closing = ExitStack()
        try:
            self._build(ends)
        except BaseException:
            self._closing.close()
            raise

    def _build(self, ends: Sequence[WireEnd]) -> None:
        for number, end in enumerate(ends):
            self._lay_pair(number, end)
            self._sockets.append(self._listening(number))
            with namespaces.inside(end.namespace):
                here, theirs = socket.if_nametoindex(end.ifname), socket.if_nametoindex(_their_half(number))
                program = self._load(hand_back(here, egress=self._egress), "hand_back")
                back = bpf.attach_first(program, theirs)
            self._closing.callback(os.close, back)
            self._programs.append((end, here, self._load(lead_aside(theirs), "lead_aside")))

    def _load(self, code: bytes, name: str) -> int:
        program = bpf.load_program(code, name)
        self._closing.callback(os.close, program)
        return program

    def _lay_pair(self, number: int, end: WireEnd) -> None:
        """Make the veth pair of an end: one half in the end's namespace, one in this process's namespace."""
        ours = _FIRST_INDEX + number
        namespace = namespaces.open_fd(end.namespace)
        try:
            common = {"mtu": end.mtu_bytes, "group": GROUP, "txqlen": 1000}
            far = rtnetlink.interface(0, ifname=_their_half(number), net_ns_fd=namespace, **common)
            near = rtnetlink.interface(ours, ifname=_our_half(number), **common)

            def make() -> None:
                with rtnetlink.opened() as route:
                    requests = [rtnetlink.veth(near, far), rtnetlink.up(ours)]
                    rtnetlink.send(route, requests, "cannot make a longer wire")

            def raise_theirs() -> None:
                namespaces.enter(end.namespace)
                theirs = socket.if_nametoindex(_their_half(number))
                with rtnetlink.opened() as route:
                    rtnetlink.send(route, [rtnetlink.up(theirs)], "cannot make a longer wire")

            namespaces.in_thread(make)
            self._closing.callback(namespaces.in_thread, lambda: _delete(ours))
            namespaces.in_thread(raise_theirs)
        finally:
            os.close(namespace)

    def _listening(self, number: int) -> socket.socket:
        """Return a packet socket that receives all frames on this process's half of a veth pair."""
        listening = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._closing.callback(listening.close)
        listening.setsockopt(SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        listening.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        listening.bind((_our_half(number), _ETH_P_ALL))
        return listening

    def attach(self) -> None:
        """Begin the delay of all links. Raise OSError if the kernel refuses a program."""
        self._links = list(self._at_once(self._attached, self._programs))

    def _attached(self, program: tuple[WireEnd, int, int]) -> int:
        end, index, code = program
        with namespaces.inside(end.namespace):
            return bpf.attach_first(code, index, egress=self._egress)

    def detach(self) -> None:
        """End the delay of all links."""
        links, self._links = self._links, []
        list(self._at_once(os.close, links))

    def _at_once(self, work: Callable[[T], R], on: Sequence[T]) -> Iterator[R]:
        """Call ``work`` for all ends in parallel, because the kernel needs some milliseconds for each."""
        if not on:
            return iter(())
        with ThreadPoolExecutor(min(len(on), _THREADS)) as pool:
            return pool.map(work, on)

    def close(self) -> None:
        """End the delay, and remove the sockets, programs and veth pairs. Delayed frames are lost."""
        self.detach()
        self._closing.close()

    def run(self, until: int) -> None:
        """Delay frames until the descriptor ``until`` is readable."""
        with select.epoll() as ready:
            numbers = {listening.fileno(): number for number, listening in enumerate(self._sockets)}
            for fd in numbers:
                ready.register(fd, select.EPOLLIN)
            while True:
                # epoll's timeout is in whole milliseconds, so select() waits for the descriptor of epoll.
                readable, _, _ = select.select([until, ready.fileno()], [], [], self._timeout_s())
                if until in readable:
                    return
                for number in (numbers[fd] for fd, _ in ready.poll(0)):
                    self._line_of[number].put(self._received(number), time.monotonic_ns())
                for line in self._lines.values():
                    self._hand_back(line.arrived(time.monotonic_ns()))

    def _timeout_s(self) -> float | None:
        """Return the longest time to wait for new frames, in s; None if no frame is delayed."""
        dues = (line.next_ns() for line in self._lines.values())
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0, due - time.monotonic_ns()) / 1e9

    def _hand_back(self, frames: Iterator[Frame]) -> None:
        for number, frame in frames:
            try:
                self._sockets[number].send(frame)
            except OSError:  # queue full or interface gone: drop the frame
                continue

    def _received(self, number: int) -> Iterator[Frame]:
        for _ in range(_BATCH):
            try:
                size = self._sockets[number].recv_into(self._room)
            except OSError:
                break
            yield number, self._room[:size]


def _our_half(number: int) -> str:
    return f"line{number}"


def _their_half(number: int) -> str:
    return f"late{os.getpid()}x{number}"


def _delete(index: int) -> None:
    with rtnetlink.opened() as route, rtnetlink.refusals("cannot take a longer wire away"):
        route.link("del", index=index)


def _tell(**said: Any) -> None:
    os.write(STDOUT, json.dumps(said).encode() + b"\n")


def _stamped(change: Callable[[], None]) -> dict[str, int]:
    before = time.monotonic_ns()
    change()
    return {"before_ns": before, "after_ns": time.monotonic_ns()}


def main() -> None:
    """Run the process until the end of standard input.

    The first line of the input names the links, and the process answers ``ready``. After the second line, the
    process delays the links until the input ends.
    """
    spec = json.loads(sys.stdin.readline())
    namespaces.unshare()
    sharpen_timers()
    try:
        with closing(Relay([WireEnd(**end) for end in spec["ends"]], egress=spec["egress"])) as relay:
            _tell(ready=True)
            if not sys.stdin.readline():
                return
            _tell(**_stamped(relay.attach))
            with before_others():
                relay.run(STDIN)
            _tell(**_stamped(relay.detach))
    except (MachineError, OSError) as error:
        _tell(problem=f"the kernel has no sch_netem, nor what can take its place ({error})")


if __name__ == "__main__":
    main()
