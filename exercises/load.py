"""Load a switch's sX-runtime.json into a P4Runtime server: `python -m mrclab.exercises.load --help`."""

from __future__ import annotations

import argparse
import queue
import sys
from pathlib import Path

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_status

from mrclab.exercises.runtime import Runtime, read_runtime
from mrclab.linux.errors import MrclabError, SwitchError

TIMEOUT_S = 60.0
_DETAILS = "grpc-status-details-bin"  # gRPC metadata: the error of each update (P4Runtime, section 12.3)


def load(address: str, device_id: int, runtime: Runtime) -> None:
    """Become the primary controller of a switch, set its pipeline and fill its tables.

    Raise SwitchError if a step fails.
    """
    channel = grpc.insecure_channel(address)
    stub = p4r_grpc.P4RuntimeStub(channel)
    out: queue.Queue[p4r.StreamMessageRequest | None] = queue.Queue()
    stream = stub.StreamChannel(iter(out.get, None), timeout=TIMEOUT_S)
    try:
        hello = p4r.StreamMessageRequest()
        hello.arbitration.device_id = device_id
        hello.arbitration.election_id.low = 1
        out.put(hello)
        status = next(stream).arbitration.status
        if status.code:
            raise SwitchError(f"{address} has another controller: {status.message}")
        pipeline = p4r.SetForwardingPipelineConfigRequest(
            device_id=device_id, action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        )
        pipeline.election_id.low = 1
        pipeline.config.p4info.CopyFrom(runtime.info)
        pipeline.config.p4_device_config = runtime.json
        stub.SetForwardingPipelineConfig(pipeline, timeout=TIMEOUT_S)
        if runtime.updates:
            write = p4r.WriteRequest(device_id=device_id, updates=runtime.updates)
            write.election_id.low = 1
            stub.Write(write, timeout=TIMEOUT_S)
    except grpc.RpcError as exc:
        raise SwitchError(_reason(exc)) from exc
    finally:
        out.put(None)
        channel.close()


def _reason(error: grpc.RpcError) -> str:
    """Return the message of the first update that failed. If no update failed, return the RPC's message."""
    found = [datum.value for datum in error.trailing_metadata() or () if datum.key == _DETAILS]
    for details in (d for d in found if isinstance(d, bytes)):
        for number, part in enumerate(rpc_status.Status.FromString(details).details):
            update = p4r.Error()
            if part.Unpack(update) and update.canonical_code:
                return f"update {number + 1}: {update.message} (code {update.canonical_code})"
    return f"{error.code().name}: {error.details()}"


def main() -> int:
    """Run the module as a program."""
    parser = argparse.ArgumentParser(prog="python -m mrclab.exercises.load", description=__doc__)
    parser.add_argument("address", help="HOST:PORT of the P4Runtime server")
    parser.add_argument("device_id", type=int)
    parser.add_argument("runtime", type=Path, help="sX-runtime.json")
    parser.add_argument("--directory", type=Path, help="what its files are relative to (default: its own)")
    parser.add_argument("--build", type=Path, help="where the files of build/ are instead")
    args = parser.parse_args()
    try:
        directory = args.directory or args.runtime.parent
        load(args.address, args.device_id, read_runtime(args.runtime, directory, args.build))
    except MrclabError as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
