"""A program that sends frames from inside a namespace and prints when it sent each frame."""

from __future__ import annotations

# The program sends frames (hex, in argv) out of a veth pair. It prints the times before and after each frame.
SENDER = """
import json, socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("mrcA", 0))
out = []
for frame in sys.argv[1:]:
    before = time.monotonic_ns()
    s.send(bytes.fromhex(frame))
    out.append([before, time.monotonic_ns()])
print(json.dumps(out))
"""
