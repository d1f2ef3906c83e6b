"""Run an exercise: hosts in network namespaces, links, switch processes, and pings of all pairs of hosts."""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from mrclab.exercises.runtime import read_runtime
from mrclab.exercises.topology import End, Link, Topology
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import MachineError, SwitchError
from mrclab.linux.life import signals
from mrclab.linux.processes import Child, Process, environment, inside, python, stop_all
from mrclab.p4src.targets import BMV2_PROGRAM
from mrclab.testbed import state
from mrclab.testbed.clean import remove
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.testbed.network import refuse_second
from mrclab.testbed.ownership import Watchdog, user
from mrclab.testbed.ownership import command as own_command

FIRST_PORT = 50051  # TCP port of the first switch's P4Runtime server, as in p4lang's courses
FIRST_THRIFT_PORT = 9090  # TCP port at which simple_switch_CLI reaches the first BMv2 switch
START_TIMEOUT_S = 60.0
FIRST_INDEX = 1001
SWITCH_MTU, HOST_MTU = 9000, 1500
BURST_BYTES = 15_000
# The length of the kernel's queue of a link, in frames. A BMv2 switch has its own queue of 64 frames, which
# fills when the kernel's queue is full. 1000 is the length that Mininet uses.
QUEUE_FRAMES = {"ebpf": 64, "bmv2": 1000}
_FRAME = HOST_MTU + 14


@dataclass(frozen=True)
class Plan:
    """The exercise to run, and the target. `read` checks the files before the machine is changed."""

    directory: Path
    topology: Topology
    target: str
    build: Path | None = None

    @classmethod
    def read(cls, directory: Path, topology: Topology, target: str, build: Path | None = None) -> Plan:
        """Return a plan. Raise BadInputError if a switch's file is missing or wrong."""
        directory, build = directory.resolve(), build.resolve() if build is not None else None
        for switch in topology.switches:
            if switch.runtime is not None:
                read_runtime(directory / switch.runtime, directory, build)
        return cls(directory, topology, target, build)


def interface(end: End) -> str:
    """Return the name of the interface at an end of a link. Names are as in Mininet."""
    return f"{end.node}-eth{end.port}" if end.port else "eth0"


@dataclass
class Exercise:
    """A running exercise. `addresses` are the addresses of the switches' P4Runtime servers, by switch."""

    plan: Plan
    names: Names
    run_id: str
    log_dir: Path
    addresses: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _processes: list[Child] = field(default_factory=list)

    def namespace(self, node: str) -> str:
        """Return the name of a node's network namespace. All switches share one namespace."""
        return (
            self.names.host(node)
            if any(h.name == node for h in self.plan.topology.hosts)
            else self.names.fabric
        )

    def start(self, node: str, command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a shell command in the namespace of a host or switch, in the directory of the exercise."""
        env = {**environment(), RUN_VARIABLE: self.run_id}
        argv = ["ip", "netns", "exec", self.namespace(node), "/bin/sh", "-c", command]
        return subprocess.Popen(argv, env=env, cwd=self.plan.directory, **options)

    def run(self, node: str, command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the namespace of a node. After `timeout` s, raise TimeoutExpired."""
        pipe = subprocess.PIPE
        with self.start(node, command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as child:
            try:
                said, _ = child.communicate(timeout=timeout)
            except BaseException:
                child.kill()
                raise
            return subprocess.CompletedProcess(command, child.returncode, said, "")


@contextmanager
def running(plan: Plan, log_dir: Path, names: Names | None = None) -> Iterator[Exercise]:
    """Run an exercise during a `with` block, then remove all of it.

    Raise BadInputError if another exercise is running. Raise MachineError, SwitchError or OSError if the
    exercise cannot be started.
    """
    names = names or Names.of_prefix(Names.from_environment().prefix + "x")
    if plan.target == "bmv2" and shutil.which(BMV2_PROGRAM) is None:
        raise MachineError(f"{BMV2_PROGRAM} is not on PATH", "install BMv2, or use --target ebpf")
    run_id = names.new_run_id()
    exercise = Exercise(plan, names, run_id, log_dir)
    with state.locked(names):
        refuse_second(names)
        remove(names, keep_lock=True)
        owner = Process.of(os.getpid(), own_command())
        watchdog = Watchdog(names, run_id, owner)
        name, user_ = plan.directory.name, user()
        state.write(names, state.State(run_id, name, "", state.now(), plan.target, owner, user=user_))
    try:
        markers = namespaces.Markers(state.markers_dir(names))
        for name in (names.fabric, *(names.host(h.name) for h in plan.topology.hosts)):
            namespaces.create(name, markers)
        namespaces.in_thread(lambda: _lay(exercise))
        _start_switches(exercise)
        _program(exercise)
        _prepare_hosts(exercise)
        yield exercise
    finally:
        with signals.deferred():
            stop_all(exercise._processes)
            with state.locked(names):
                remove(names)
            watchdog.stop()


# -- links -------------------------------------------------------------------------------------------------


def _lay(exercise: Exercise) -> None:
    """Make the links and set their rates and delays. This moves the calling thread to another namespace."""
    topology, names = exercise.plan.topology, exercise.names
    macs = {h.name: h.mac for h in topology.hosts}
    fds = {name: namespaces.open_fd(name) for name in {exercise.namespace(n) for n in (*macs, names.fabric)}}
    try:
        namespaces.enter(names.fabric)
        ends: dict[str, list[tuple[int, End, Link]]] = {}
        requests = []
        for number, link in enumerate(topology.links):
            pair = []
            for side, end in enumerate((link.a, link.b)):
                index = FIRST_INDEX + 2 * number + side
                ends.setdefault(exercise.namespace(end.node), []).append((index, end, link))
                settings: dict[str, object] = {
                    "ifname": interface(end),
                    "mtu": SWITCH_MTU if end.port else HOST_MTU,
                }
                if not end.port:
                    settings["address"] = macs[end.node]
                settings["net_ns_fd"] = fds[exercise.namespace(end.node)]
                pair.append(rtnetlink.interface(index, **settings))
            requests.append(rtnetlink.veth(pair[0], pair[1]))
        with rtnetlink.opened() as route:
            rtnetlink.send(route, requests, "cannot make links")
        for namespace, here in ends.items():
            namespaces.enter(namespace)
            with rtnetlink.opened_ethtool() as ethtool:
                rtnetlink.switch_off(ethtool, [interface(end) for _, end, _ in here])
            with rtnetlink.opened() as route:
                for index, _, link in here:
                    _shape(route, index, link, exercise.plan.target)
                rtnetlink.send(route, [rtnetlink.up(index) for index, _, _ in here], "cannot bring links up")
        for namespace, here in ends.items():
            namespaces.enter(namespace)
            with rtnetlink.opened_ethtool() as ethtool:
                for _, end, _ in here:
                    rtnetlink.settle(ethtool, interface(end))
    finally:
        for fd in fds.values():
            os.close(fd)


def _shape(route: Any, index: int, link: Link, target: str) -> None:
    if not link.rate_bps and not link.delay_ns:
        return
    # The delay (netem) is attached to a token bucket. Without a link rate, the bucket gets a very high rate.
    bucket = rtnetlink.tbf(
        index,
        rate_bps=link.rate_bps or 100 * 10**9,
        burst_bytes=BURST_BYTES if link.rate_bps else 1 << 20,
        limit_bytes=QUEUE_FRAMES[target] * _FRAME,
    )
    rtnetlink.send(route, [bucket], "cannot set link rates")
    if link.delay_ns:
        try:
            delay = rtnetlink.netem(index, delay_ns=link.delay_ns, limit_packets=QUEUE_FRAMES[target])
            rtnetlink.send(route, [delay], "cannot set link delays")
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise MachineError(
                    "the kernel has no sch_netem, which link latencies need",
                    "enable CONFIG_NET_SCH_NETEM (modprobe sch_netem), or take them out of the topology",
                ) from None
            raise


# -- switches ----------------------------------------------------------------------------------------------


def _start_switches(exercise: Exercise) -> None:
    topology, fabric = exercise.plan.topology, exercise.names.fabric
    for number, switch in enumerate(topology.switches):
        address = f"127.0.0.1:{FIRST_PORT + number}"
        options = ["--no-p4", "--device-id", str(switch.device_id)]
        for port in topology.ports(switch.name):
            options += ["-i", f"{port}@{interface(End(switch.name, port))}"]
        options += ["--", "--grpc-server-addr", address]
        if switch.cpu_port is not None:
            options += ["--cpu-port", str(switch.cpu_port)]
        if exercise.plan.target == "bmv2":
            command = _bmv2(number)
        else:
            command = python("mrclab.switches.ebpf.main")
        marked = ["env", f"{RUN_VARIABLE}={exercise.run_id}", *command, *options]
        log = exercise.log_dir / f"{switch.name}.log"
        exercise._processes.append(Child(inside(fabric, marked), log))
        exercise.addresses[switch.name] = address
    wait = python("mrclab.switches.readiness", str(START_TIMEOUT_S), *exercise.addresses.values())
    done = subprocess.run(
        inside(fabric, wait), env=environment(), capture_output=True, text=True, check=False
    )
    for switch, process in zip(topology.switches, exercise._processes, strict=True):
        if not process.alive():
            raise SwitchError(f"{switch.name} {process.why_ended()}")
    if done.returncode:
        raise SwitchError(done.stderr.strip())


def _bmv2(number: int) -> list[str]:
    """Return the BMv2 command for switch ``number``, with a separate Thrift port, without interfaces."""
    offered = subprocess.run([BMV2_PROGRAM, "--help"], capture_output=True, text=True, check=False).stdout
    out = [BMV2_PROGRAM, "--log-console", "--log-level", "warn"]
    if "--thrift-port" in offered:
        out += ["--thrift-port", str(FIRST_THRIFT_PORT + number)]
    return out


def _program(exercise: Exercise) -> None:
    """Set the pipeline of each switch and fill its tables, with one process for each switch."""
    plan, loaders = exercise.plan, []
    for switch in plan.topology.switches:
        if switch.runtime is None:
            continue
        options = ["--build", str(plan.build)] if plan.build is not None else []
        what = [exercise.addresses[switch.name], str(switch.device_id), str(plan.directory / switch.runtime)]
        command = python("mrclab.exercises.load", *what, "--directory", str(plan.directory), *options)
        child = subprocess.Popen(
            inside(exercise.names.fabric, command),
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        loaders.append((switch.name, child))
    said = [(name, child.communicate()[1], child.returncode) for name, child in loaders]
    for name, words, code in said:
        if code:
            raise SwitchError(f"{name}: {(words.strip().splitlines() or ['it said nothing'])[-1]}")


# -- hosts -------------------------------------------------------------------------------------------------


def _prepare_hosts(exercise: Exercise) -> None:
    for host in exercise.plan.topology.hosts:
        address = f"ip address add {host.ip} dev eth0"
        if (done := exercise.run(host.name, address)).returncode:
            raise SwitchError(f"{host.name}: {address}: {done.stdout.strip()}")
        for command in host.commands:
            done = exercise.run(host.name, command)
            if done.returncode:
                said = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                exercise.warnings.append(f"{host.name}: '{command}' failed: {said}")


COUNT, WAIT_S = 3, 2
_LIMIT_S = 60.0


def ping_all(up: Exercise) -> dict[tuple[str, str], bool]:
    """Ping between all ordered pairs of hosts at the same time. Return True for each pair with an answer.

    Each ping sends three requests, because the first may be lost while ARP or a controller is slow.
    """
    addresses = {host.name: ipaddress.ip_interface(host.ip).ip for host in up.plan.topology.hosts}
    running = {
        (src, dst): up.start(
            src,
            f"exec ping -n -q -c {COUNT} -i 0.5 -W {WAIT_S} {addresses[dst]}",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for src, dst in permutations(addresses, 2)
    }
    try:
        return {pair: child.wait(_LIMIT_S) == 0 for pair, child in running.items()}
    finally:
        for child in running.values():
            child.kill()
            child.wait()
