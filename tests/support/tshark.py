"""Run tshark with mrclab's dissector, and end a capture without loss."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mrclab.linux import namespaces
from tests.support.paths import ROOT

SCRIPT = ROOT / "tools" / "wireshark" / "mrc.lua"
SEPARATOR, AGGREGATOR = "\t", ","
END = b"mrclab: the capture ends here"
"""The payload of the last packet of a capture. Its protocol is one that mrclab does not use."""
TIMEOUT_S = 280.0
"""Less than a test's time limit. On an idle machine, the dissector reads a thousand packets a second."""
_NO_NEXT_HEADER = 59


def require_tshark() -> str:
    """Return the path of tshark. If it is missing, fail in CI, and skip the test elsewhere."""
    found = shutil.which("tshark")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("tshark is not on PATH in CI")
        pytest.skip("tshark is not on PATH: apt install tshark")
    return found


def tshark(*words: str) -> str:
    """Return what tshark with the dissector prints. A Lua error fails the test."""
    done = subprocess.run(
        [require_tshark(), *words, "-X", f"lua_script:{SCRIPT}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr
    assert "Lua Error:" not in done.stdout
    return done.stdout


def fields_of(capture: Path, names: Sequence[str], *options: str) -> list[dict[str, str]]:
    """Return the fields that each packet has. If a field has several values, they are joined by commas."""
    columns = [word for name in names for word in ("-e", name)]
    separators = ("-E", f"separator={SEPARATOR}", "-E", f"aggregator={AGGREGATOR}")
    text = tshark("-r", str(capture), "-T", "fields", *separators, *columns, *options)
    rows = [line.split(SEPARATOR) for line in text.splitlines()]
    assert all(len(row) == len(names) for row in rows)
    return [{n: v for n, v in zip(names, row, strict=True) if v} for row in rows]


def registered_fields(protocol: str) -> set[str]:
    """Return the names of all fields of a protocol in the dissector, except headers and expert items."""
    lines = [line.split("\t") for line in tshark("-G", "fields").splitlines()]
    return {
        row[2]
        for row in lines
        if row[0] == "F" and row[4] == protocol and row[3] != "FT_BYTES" and ".expert." not in row[2]
    }


def end_capture(tcpdump: subprocess.Popen[str], capture: Path, namespace: str, ifname: str) -> None:
    """End a capture of IPv6 when all packets of an interface so far are in the file.

    tcpdump gets packets from the kernel late, in blocks. When the packet with the payload `END` is in the
    file, the earlier packets are in it too.
    """
    ipv6 = bytes((0x60, 0, 0, 0)) + len(END).to_bytes(2, "big") + bytes((_NO_NEXT_HEADER, 1))
    addresses = socket.inet_pton(socket.AF_INET6, "fe80::1") + socket.inet_pton(socket.AF_INET6, "ff02::1")
    frame = bytes.fromhex("333300000001 020000000001 86dd") + ipv6 + addresses + END
    with namespaces.inside(namespace), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((ifname, 0))
        sender.send(frame)
    while END not in capture.read_bytes():
        assert tcpdump.poll() is None
        time.sleep(0.05)
    tcpdump.terminate()
    tcpdump.communicate()
