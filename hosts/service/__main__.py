"""``python -m mrclab.hosts.service``: the NIC service of a host, in the host's network namespace.

A JSON object on standard input has the ``fabric`` (text), the ``host``, the path of the ``socket`` to listen
on, the path of the event ``log``, the ``options`` of MRC and the ``linger_s`` time. ``ready`` on standard
output says that programs may attach.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from mrclab.hosts.eventlog import EventLog
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.nic.device import Device
from mrclab.hosts.service.nic_service import NicService
from mrclab.hosts.transports import DEFAULT, make_config
from mrclab.hosts.worker import freeze_heap
from mrclab.linux.scheduling import take_cpu
from mrclab.topologies import fabric_from_text

LOG_BYTES = 64 << 20


def main() -> None:
    """Serve until no program has been here for the linger time."""
    if os.fork():
        os._exit(0)  # a program must not find a child that it did not start
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    settings = json.loads(sys.stdin.readline())
    fabric = fabric_from_text(settings["fabric"])
    host = settings["host"]
    config = make_config(DEFAULT, fabric, host, settings["options"])
    device = Device.open(fabric, host, config, random.Random())
    endpoint = device.endpoint
    assert isinstance(endpoint, Endpoint)
    log = EventLog(Path(settings["log"]), host, device.now(), completions=False, keep_bytes=LOG_BYTES)
    path = Path(settings["socket"])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        own = os.stat(path)
        path.chmod(0o666)  # the service itself looks at who connects
        listener.listen(64)
        listener.setblocking(False)
        service = NicService(device, endpoint, fabric, host, listener, log, round(settings["linger_s"] * 1e9))
        take_cpu(None)
        begin_collecting()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the log is completed
        print("ready", flush=True)
        sys.stdout = None
        os.close(1)
        os.open(os.devnull, os.O_WRONLY)
        try:
            service.run()
        finally:
            with suppress(OSError):
                if os.path.samestat(os.stat(path), own):
                    path.unlink()
            log.close()
            device.close()


def begin_collecting() -> None:
    """Exempt all present objects from garbage collection, and count later ones from zero.

    Python runs a full collection when the heap has grown by a quarter of its size at the last one. That size
    would include the frozen objects, so that some megabytes of destroyed queue pairs would wait.
    """
    freeze_heap()
    gc.collect()


if __name__ == "__main__":
    main()
