"""P4Runtime clients that end in the middle of a stream."""

import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.linux.processes import environment
from tests.support.switch_process import free_port

CLIENT = """
import os, sys
import grpc
from finsy.proto import p4r, p4r_grpc

def requests():
    while True:
        message = p4r.StreamMessageRequest()
        message.arbitration.device_id = message.arbitration.election_id.low = 1
        yield message

stub = p4r_grpc.P4RuntimeStub(grpc.insecure_channel(sys.argv[1]))
for number, _ in enumerate(stub.StreamChannel(requests())):
    if number == int(sys.argv[2]):
        os._exit(0)  # answers are under way
"""


@pytest.mark.slow
def test_a_client_that_goes_away_during_a_stream_leaves_no_traceback(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", "--no-p4", "--device-id", "1", "--"]
    log = tmp_path / "log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            [*command, "--grpc-server-addr", address],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdout.readline().startswith("READY")
        for number in (0, 20, 100):
            client = [sys.executable, "-c", CLIENT, address, str(number)]
            assert subprocess.run(client, env=environment(), check=False).returncode == 0
        server.terminate()
        assert server.wait() == 0
    assert "Traceback" not in log.read_text()
    assert "stopping" in log.read_text()
