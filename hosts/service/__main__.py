"""``python -m mrclab.hosts.service``: the NIC service of a host, in the host's network namespace.

Standard input has a JSON object: the ``fabric`` (text), the ``host``, the path of the ``socket`` to listen
on, the path of the event ``log``, the ``options`` of MRC, and the time ``linger_s``. The service ends after
this time without an attached program. The word ``ready`` on standard output means that programs may attach.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import resource
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
    """Serve programs. End after the time ``linger_s`` without an attached program."""
    if os.fork():
        os._exit(0)  # the service must not be a child process of the program that starts it
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # programs' channels alone may be 65,536
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
        path.chmod(0o666)  # all users may connect, but the service checks the user of each connection
        listener.listen(64)
        listener.setblocking(False)
        service = NicService(device, endpoint, fabric, host, listener, log, round(settings["linger_s"] * 1e9))
        take_cpu(None)
        begin_collecting()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # `finally` then completes the log
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
    """Exclude all existing objects from garbage collection and from the collector's heap size.

    Python runs a full collection when the heap has grown by a quarter since the last collection. If the heap
    size included existing objects, many megabytes of destroyed queue pairs would stay in memory for long.
    """
    freeze_heap()
    gc.collect()


if __name__ == "__main__":
    main()
