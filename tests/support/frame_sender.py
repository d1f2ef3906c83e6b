"""A program that sends frames from inside a namespace and says when."""

from __future__ import annotations

# Sends frames (hex, in argv) out of one end of the veth pair, and tells the monotonic time around each.
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
