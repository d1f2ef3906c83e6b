"""The socket over which `mrclab profile` shows and changes the profiles of a running NIC.

The NIC's process opens the socket. It is an abstract UNIX socket, so it belongs to the network namespace of
the host and disappears with the process. Only the user of the process and root may use it. Requests and
answers are lines of JSON (`mrclab.hosts.mrc.profiles.requests`). If a client does not read, it is
disconnected, so that it cannot block the NIC.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import QpAttributes
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import invalid
from mrclab.hosts.mrc.profiles.requests import DEFAULT_ID, ProfileRequests, default_profiles
from mrclab.hosts.nic.device import Device
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.rdma.paths import RemotePaths
from mrclab.linux.requests import encode

PREFIX: Final = "mrclab-profiles-"
REQUEST_BYTES: Final = 1 << 20
MOST_CLIENTS: Final = 8
TIMEOUT_S = 10.0
_SO_SNDBUFFORCE = 32
_ANSWER_BYTES = 4 << 20
_PEER = struct.Struct("3i")


class HostProfiles:
    """The profiles of a host's NIC, and their socket."""

    def __init__(self, device: Device, host: str) -> None:
        """Open the socket. If the transport is not MRC, there are no profiles and no socket."""
        self._device = device
        self._profiles: NicProfiles | None = None
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}
        self._socket: socket.socket | None = None
        if not isinstance(device.endpoint, MrcEndpoint):
            return
        self._profiles = NicProfiles(device.endpoint)
        default_profiles(self._profiles)
        self.requests = ProfileRequests(self._profiles, host, device.now)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{PREFIX}{os.getpid()}-{id(self):x}")
        self._socket.listen(MOST_CLIENTS)

    def close(self) -> None:
        """Close the socket and drop its clients."""
        for client, _ in self._clients.values():
            client.close()
        self._clients.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def connect(
        self,
        qpn: int,
        remote: Any,
        paths: RemotePaths,
        ev_profile: int | None = None,
        cc_profile: int | None = None,
    ) -> None:
        """Connect a queue pair with these profiles, by default the profiles with id 1.

        Raise the errors of `NicProfiles.connect`. Raise EINVAL if profiles are given and the transport is not
        MRC.
        """
        endpoint: Endpoint = self._device.endpoint
        if self._profiles is None or not isinstance(remote, QpAttributes):
            if ev_profile is not None or cc_profile is not None:
                raise invalid("only MRC has profiles")
            endpoint.connect(qpn, remote, paths)
            return
        usual = DEFAULT_ID if DEFAULT_ID in self._profiles.ccs else None
        self._profiles.connect(
            qpn,
            remote,
            paths,
            DEFAULT_ID if ev_profile is None else ev_profile,
            usual if cc_profile is None else cc_profile,
        )

    def deny_again(self, qpn: int) -> None:
        """Deny the EVs of the profile's denylist again: another request may have allowed these EVs."""
        if self._profiles is not None:
            self._profiles.deny_again(qpn)

    def observe(self, event: Event) -> None:
        """Update the profiles after an event of the NIC."""
        if self._profiles is not None:
            self._profiles.observe(event)

    def descriptors(self) -> list[int]:
        """Return the descriptors that are readable when `serve` has something to do."""
        return [] if self._socket is None else [self._socket.fileno(), *self._clients]

    def serve(self, readable: Collection[int]) -> None:
        """Accept clients and answer requests. Descriptors of other owners in ``readable`` are ignored."""
        for fd in readable:
            if self._socket is not None and fd == self._socket.fileno():
                self._accept()
            elif fd in self._clients:
                self._read(fd)

    def _accept(self) -> None:
        assert self._socket is not None
        with suppress(BlockingIOError):
            client, _ = self._socket.accept()
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            _, uid, _ = _PEER.unpack(credentials)
            if uid not in (0, os.getuid()) or len(self._clients) >= MOST_CLIENTS:
                client.close()
                return
            client.setblocking(False)
            with suppress(PermissionError):
                client.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ANSWER_BYTES)
            self._clients[client.fileno()] = client, bytearray()

    def _read(self, fd: int) -> None:
        client, waiting = self._clients[fd]
        try:
            got = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        waiting += got
        while got and b"\n" in waiting:
            line, _, rest = bytes(waiting).partition(b"\n")
            waiting[:] = rest
            answer = encode(self.requests.carry_out(_parsed(line)))
            try:
                sent = client.send(answer)
            except OSError:  # for instance, the send buffer is full because the client does not read
                sent = 0
            if sent < len(answer):
                got = b""
        if not got or len(waiting) > REQUEST_BYTES:
            del self._clients[fd]
            client.close()


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def sockets_here() -> list[str]:
    """Return the names of the sockets in the calling thread's network namespace."""
    lines = Path("/proc/thread-self/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.rpartition("@")[2] for line in lines if f"@{PREFIX}" in line}
    return sorted(names)


def ask(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a socket in the calling thread's network namespace, and return the answer.

    Raise OSError if the process has ended or does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(f"\0{name}")
        connection.sendall(encode(request))
        with connection.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        raise ConnectionError("the process with the NIC closed the connection")
    answer: dict[str, Any] = json.loads(line)
    return answer
