"""`simple_switch_ebpf`: the eBPF switch as a program, with the command line of simple_switch_grpc.

The switch runs in the network namespace in which it is started. On SIGTERM or SIGINT it removes its filters
from the interfaces. After SIGKILL the filters stay there and forward with their last entries, until the
interfaces are deleted or the next start replaces the filters.

Exit codes: 0 after a signal, 2 for bad input, 3 if the machine lacks a needed feature, 1 for other errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrclab.linux.errors import BadInputError, MrclabError
from mrclab.switches.ebpf.plan import SLOTS
from mrclab.switches.ebpf.runtime.interfaces import MOST_FRAMES_PER_SECOND, Claims
from mrclab.switches.spec import SwitchSpec

if TYPE_CHECKING:
    from mrclab.switches.ebpf.p4runtime.server import P4RuntimeServer

READY = "READY"
DEFAULT_ADDRESS = "127.0.0.1:9559"
MOST_PORT = 65535
MOST_CLAIMS = 64
DEFAULT_DEPTH = 64  # default depth of a queue in frames, as in BMv2

log = logging.getLogger("simple_switch_ebpf")


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    specs: tuple[SwitchSpec, ...]
    json_file: Path | None
    address: str
    queues: Mapping[tuple[int, int], tuple[int, int]]  # (device id, port) -> (frames/s, depth in frames)


def _port(text: str) -> tuple[int, str]:
    number, at, interface = text.partition("@")
    if not at or not number.isdigit() or not interface:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT@INTERFACE")
    return int(number), interface


def _setting(text: str) -> tuple[int | None, int]:
    port, equals, number = text.rpartition("=")
    if not number.isdigit() or (equals and not port.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not [PORT=]NUMBER")
    return int(port) if equals else None, int(number)


def port_queues(
    specs: Sequence[SwitchSpec],
    rates: Sequence[tuple[int | None, int]],
    depths: Sequence[tuple[int | None, int]],
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the rate and the depth of queues, by (device id, port), from the options of the command line.

    As in BMv2's CLI (`set_queue_rate`, `set_queue_depth`), a rate of 0 means no limit. If there are settings
    for one port and for all ports, the port has its own setting. Raise BadInputError for an invalid setting.
    """
    known = {port for spec in specs for port in spec.ports}
    for option, settings in (("--queue-rate", rates), ("--queue-depth", depths)):
        for port, number in settings:
            if port is not None and port not in known:
                raise BadInputError(f"{option} {port}={number}: there is no port {port}")
    out = {}
    for spec in specs:
        for port in spec.ports:
            rate, depth = (_chosen(settings, port) for settings in (rates, depths))
            if rate is not None and rate > MOST_FRAMES_PER_SECOND:
                raise BadInputError(f"--queue-rate {rate}: at most {MOST_FRAMES_PER_SECOND}")
            if depth is not None and not 0 < depth < SLOTS:
                raise BadInputError(f"--queue-depth {depth}: expects 1 to {SLOTS - 1}")
            if depth is not None and not rate:
                raise BadInputError(f"--queue-depth: port {port} has no --queue-rate, so nothing waits there")
            if rate:
                out[spec.device_id, port] = rate, depth or DEFAULT_DEPTH
    return out


def _chosen(settings: Sequence[tuple[int | None, int]], port: int) -> int | None:
    by_port = dict(settings)
    return by_port.get(port, by_port.get(None))


def loopback(address: str) -> str:
    """Return the address to listen on. An address that means all interfaces is changed to loopback.

    Raise BadInputError for any other address that is not a loopback address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise BadInputError(f"--grpc-server-addr {address}: expects HOST:PORT")
    if int(port) > MOST_PORT:
        raise BadInputError(f"--grpc-server-addr {address}: there is no port above {MOST_PORT}")
    if host in ("", "0.0.0.0", "[::]"):
        log.warning("listening on loopback only, not on %s", host or "all interfaces")
        return f"127.0.0.1:{port}"
    if host == "localhost" or host == "[::1]" or host.startswith("127."):
        return address
    raise BadInputError(f"--grpc-server-addr {address}: this server listens on loopback only")


def read_specs(path: Path) -> tuple[SwitchSpec, ...]:
    """Read a fabric: a JSON list of {"name", "device_id", "ports": {"1": "interface"}, "cpu_port"}.

    Raise BadInputError if the file cannot be read or has another form.
    """
    try:
        return tuple(
            SwitchSpec(
                o["name"],
                int(o["device_id"]),
                {int(p): str(i) for p, i in o["ports"].items()},
                None if o.get("cpu_port") is None else int(o["cpu_port"]),
            )
            for o in json.loads(path.read_text())
        )
    except OSError as exc:
        raise BadInputError(f"{path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BadInputError(f"{path}: not a list of switches: {exc}") from exc


def parse(argv: Sequence[str]) -> Options:
    """Parse the command line. Raise BadInputError for invalid options. `--help` exits."""
    target = argparse.ArgumentParser(prog="simple_switch_ebpf -- ", add_help=False, exit_on_error=False)
    target.add_argument("--grpc-server-addr", default=DEFAULT_ADDRESS)
    target.add_argument("--cpu-port", type=int)
    target.add_argument("--queue-rate", type=_setting, action="append", default=[])
    target.add_argument("--queue-depth", type=_setting, action="append", default=[])
    parser = argparse.ArgumentParser(
        prog="simple_switch_ebpf",
        description="Runs a v1model program (BMv2 JSON) in the kernel, with P4Runtime.",
        epilog=f"After --: --grpc-server-addr HOST:PORT (default {DEFAULT_ADDRESS}), --cpu-port PORT, "
        f"--queue-rate [PORT=]FRAMES_PER_SECOND, --queue-depth [PORT=]FRAMES (default {DEFAULT_DEPTH})",
        exit_on_error=False,
    )
    parser.add_argument(
        "-i", "--interface", type=_port, action="append", default=[], metavar="PORT@INTERFACE"
    )
    parser.add_argument("--device-id", type=int, default=0, help="P4Runtime device id (default 0)")
    parser.add_argument("--no-p4", action="store_true", help="start without a program")
    parser.add_argument("--fabric", type=Path, help="a JSON list of switches to run in this one process")
    parser.add_argument("--log-console", action="store_true", help="accepted; the log always goes to stderr")
    parser.add_argument("--thrift-port", type=int, help="accepted; there is no Thrift server")
    parser.add_argument("json", type=Path, nargs="?", help="BMv2 JSON to run until a client sets a pipeline")
    before, after = list(argv), []
    if "--" in before:
        cut = before.index("--")
        before, after = before[:cut], before[cut + 1 :]
    try:
        options, unknown = parser.parse_known_args(before)
        target_options, more = target.parse_known_args(after)
    except argparse.ArgumentError as exc:
        raise BadInputError(str(exc)) from exc
    if unknown or more:
        raise BadInputError(f"unknown option {' '.join(unknown + more)}")
    if options.fabric is not None:
        if options.interface:
            raise BadInputError("--fabric and -i exclude each other")
        specs = read_specs(options.fabric)
        if target_options.cpu_port is not None:
            specs = tuple(replace(s, cpu_port=target_options.cpu_port) for s in specs)
    else:
        ports = dict(options.interface)
        if len(ports) != len(options.interface):
            raise BadInputError("a port is given twice")
        name = f"s{options.device_id}"
        specs = (SwitchSpec(name, options.device_id, ports, target_options.cpu_port),)
    if not options.no_p4 and options.json is None and options.fabric is None:
        raise BadInputError("give a JSON file, or --no-p4 to start without a program")
    queues = port_queues(specs, target_options.queue_rate, target_options.queue_depth)
    json_file = None if options.no_p4 else options.json
    return Options(specs, json_file, loopback(target_options.grpc_server_addr), queues)


async def serve(options: Options) -> None:
    """Run the switches until SIGTERM or SIGINT. Raise SwitchError if they cannot start."""
    from mrclab.switches.ebpf.p4runtime.server import P4RuntimeServer
    from mrclab.switches.ebpf.probe import check_machine

    check_machine()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = P4RuntimeServer(options.specs, options.address, options.queues)
    interfaces = [interface for spec in options.specs for interface in spec.ports.values()]
    # A claim stops a second server on the same interface. Each claim takes a file descriptor, so a large
    # fabric has no claims: it has its own namespace, in which no second server runs.
    with Claims(interfaces if len(interfaces) <= MOST_CLAIMS else ()):
        async with server:
            if options.json_file is not None:
                await _load(server, options, options.json_file)
            host = options.address.rpartition(":")[0]
            print(f"{READY} {host}:{server.port}", flush=True)
            log.info("serving %d switches on %s:%d", len(options.specs), host, server.port)
            await stop.wait()
            log.info("stopping")


async def _load(server: P4RuntimeServer, options: Options, file: Path) -> None:
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise BadInputError(f"{file}: {exc.strerror}") from exc
    for spec in options.specs:
        await server.load_json(spec.device_id, data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `simple_switch_ebpf`. Return its exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(serve(parse(sys.argv[1:] if argv is None else argv)))
    except MrclabError as exc:
        print(f"simple_switch_ebpf: {exc}", file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
