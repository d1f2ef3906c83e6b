"""Claims on interfaces, so that two switch servers never program the same one.

A claim is a name among the abstract Unix sockets of the network namespace: the kernel gives it up with the
process, however that ends.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mrclab.linux.errors import BadInputError
from mrclab.linux.traffic_control import ifindex_of


class Claims:
    """Claims on interfaces of this network namespace. A context manager that gives them up."""

    def __init__(self, interfaces: Iterable[str]) -> None:
        """Claim all. Raise BadInputError if one is claimed already, or missing."""
        self._held = ExitStack()
        try:
            for interface in interfaces:
                self._claim(interface)
        except BaseException:
            self._held.close()
            raise

    def _claim(self, interface: str) -> None:
        claim = self._held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            claim.bind(f"\0mrclab-switch-port-{ifindex_of(interface)}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise BadInputError(
                f"interface {interface} is a port of another simple_switch_ebpf: end that one first"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
