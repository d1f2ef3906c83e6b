"""Check that this machine can run a testbed, by trying each requirement in a temporary namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrclab.linux import namespaces
from mrclab.linux.errors import MachineError
from mrclab.linux.scheduling import usable_cpus
from mrclab.linux.system import is_root, libc, require_linux

if TYPE_CHECKING:
    from pyroute2 import IPRoute

FRR = Path("/usr/lib/frr")
"""The directory in which the packages of Debian and FRRouting install the daemons."""
MIN_PYTHON = (3, 11)
MIN_KERNEL = (5, 15)
MIN_MEMORY = 1 << 30
MIN_FILES = 1024  # open files per process; all switches of `wide` need about 600
IPPROTO_MPTCP = 262
BPF_PROG_LOAD = 5
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_PROBE, _PROBE_INDEX = "mrcprobe0", 100
_INGRESS = "ffff:fff2"


@dataclass(frozen=True, slots=True)
class Check:
    """The check of a requirement or an extra: its result, the finding, and the way to add a missing part."""

    name: str
    ok: bool
    required: bool
    found: str
    mend: str = ""

    def __str__(self) -> str:
        mark = "ok     " if self.ok else "MISSING" if self.required else "absent "
        line = f"{mark}  {self.name}: {self.found}"
        return line if self.ok or not self.mend else f"{line}; {self.mend}"


def doctor() -> tuple[Check, ...]:
    """Check the machine and remove all traces of the checks. Without root, skip checks that need root."""
    checks = [_root(), _python(), _kernel()]
    if checks[0].ok:
        checks += _kernel_checks()
    checks += [_jit(), _tools(), _memory(), _cpus()]
    checks += [_tool(*tool) for tool in _TOOLS]
    checks += [_mptcp()]
    return tuple(checks)


def require_machine() -> None:
    """Raise MachineError if something is missing that every testbed needs.

    If the limit of open files is too low, this function tries to increase the limit.
    """
    require_linux("a running fabric")
    for check in (_files(), _root(), _python(), _tool("ip", True, "iproute2", "")):
        if not check.ok:
            raise MachineError(check.found, check.mend)


def _files() -> Check:
    """Check the limit of open files. If the limit is too low, increase it."""
    import resource  # exists on Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < MIN_FILES:
        with suppress(ValueError, OSError):
            more = hard if hard == unlimited else max(hard, MIN_FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_FILES, more))
            soft = MIN_FILES
    ok = soft == unlimited or soft >= MIN_FILES
    return Check("open files", ok, True, f"at most {soft} files may be open here", f"ulimit -n {MIN_FILES}")


def _root() -> Check:
    if not is_root():
        return Check("root", False, True, "not running as root", "run it as root (sudo)")
    try:
        namespaces.in_thread(_unshare)
    except OSError as error:
        return Check(
            "root",
            False,
            True,
            f"may not make network namespaces ({error.strerror or error})",
            namespaces.PERMISSION,
        )
    return Check("root", True, True, "may make network namespaces")


def _unshare() -> None:
    if libc().unshare(namespaces.CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _python() -> Check:
    found = platform.python_version()
    wanted = ".".join(map(str, MIN_PYTHON))
    return Check("Python", sys.version_info >= MIN_PYTHON, True, found, f"install Python {wanted} or later")


def _kernel() -> Check:
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    wanted = ".".join(map(str, MIN_KERNEL))
    return Check("kernel", version >= MIN_KERNEL, True, release, f"boot Linux {wanted} or later")


def _kernel_checks() -> list[Check]:
    """Return the checks that need root. They run in a namespace that disappears with its thread."""
    from mrclab.linux import rtnetlink

    def work() -> list[Check]:
        _unshare()
        with rtnetlink.opened() as route:
            return _try_all(route)

    return namespaces.in_thread(work)


def _try_all(route: IPRoute) -> list[Check]:
    def veth() -> str:
        route.link("add", ifname=_PROBE, index=_PROBE_INDEX, kind="veth", peer="mrcprobe1")
        return "works"

    def tbf() -> str:
        route.tc("add", "tbf", _PROBE_INDEX, "1:", rate="1gbit", burst=20_000, limit=10**6)
        return "works"

    def htb() -> str:
        (peer,) = route.link_lookup(ifname="mrcprobe1")
        route.tc("add", "htb", peer, "1:", default=0x10)
        return "works"

    def netem() -> str:
        route.tc("add", "netem", _PROBE_INDEX, "10:", parent="1:1", delay=1, limit=100)
        return "works"

    def clsact() -> str:
        route.tc("add", "clsact", _PROBE_INDEX)
        return "works"

    programs: list[int] = []

    def bpf() -> str:
        programs.append(_load_bpf())
        return "loads programs"

    def cls_bpf() -> str:
        if not programs:
            raise OSError(errno.EBADF, "there is no program to attach")
        route.tc("add-filter", "bpf", _PROBE_INDEX, parent=_INGRESS, fd=programs[0], name="probe")
        return "works"

    def option(config: str, module: str) -> str:
        return (
            f"modprobe {module}, or a kernel with {config} (Debian, Ubuntu: linux-image-amd64, linux-generic)"
        )

    try:
        return [
            _attempt("veth", True, veth, option("CONFIG_VETH", "veth")),
            _attempt("link rates (TBF)", True, tbf, option("CONFIG_NET_SCH_TBF", "sch_tbf")),
            _attempt("switch queues (HTB)", True, htb, option("CONFIG_NET_SCH_HTB", "sch_htb")),
            _attempt("tc clsact", True, clsact, option("CONFIG_NET_SCH_INGRESS", "sch_ingress")),
            _attempt("BPF", True, bpf, "a kernel with CONFIG_BPF_SYSCALL, and CAP_BPF or --privileged"),
            _attempt("tc BPF (cls_bpf)", True, cls_bpf, option("CONFIG_NET_CLS_BPF", "cls_bpf")),
            _attempt(
                "link delays (netem)",
                False,
                netem,
                option("CONFIG_NET_SCH_NETEM", "sch_netem")
                + ", for the latencies of exercises; fabrics do without",
            ),
        ]
    finally:
        for fd in programs:
            os.close(fd)


def _attempt(name: str, required: bool, work: Callable[[], str], mend: str) -> Check:
    from pyroute2 import NetlinkError

    try:
        return Check(name, True, required, work())
    except NetlinkError as error:
        return Check(name, False, required, str(error.args[1]), mend)
    except OSError as error:
        return Check(name, False, required, error.strerror or str(error), mend)


def _load_bpf() -> int:
    """Load a BPF program that only returns 0; return its descriptor."""
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known to us on {platform.machine()}")
    code = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    fields = (BPF_PROG_TYPE_SCHED_CLS, 2, ctypes.addressof(instructions), ctypes.addressof(licence), 0, 0, 0)
    attributes = ctypes.create_string_buffer(struct.pack("=IIQQIIQ", *fields), 128)
    fd: int = libc().syscall(number, BPF_PROG_LOAD, attributes, 128)
    if fd < 0:
        code_ = ctypes.get_errno()
        raise OSError(code_, os.strerror(code_))
    return fd


_JIT = Path("/proc/sys/net/core/bpf_jit_enable")


def _jit() -> Check:
    mend = "sysctl -w net.core.bpf_jit_enable=1 (a kernel with CONFIG_BPF_JIT)"
    try:
        value = _JIT.read_text().strip()
    except FileNotFoundError:  # the file exists only in the first network namespace
        mend = "look outside of the container: sysctl net.core.bpf_jit_enable (no such key: CONFIG_BPF_JIT)"
        return Check("BPF JIT", False, False, "not shown here", mend)
    except OSError as error:
        return Check("BPF JIT", False, False, f"cannot be read ({error.strerror})", mend)
    return Check("BPF JIT", value != "0", True, "on" if value != "0" else "off", mend)


def _tools() -> Check:
    try:
        import mininet.node  # also imports distutils (in Python 3.12, from setuptools)

        return Check("Mininet", True, True, str(Path(mininet.__file__).parent))
    except ImportError as error:
        return Check("Mininet", False, True, str(error), "pip install mininet setuptools")


# The columns of this table: name, required, Debian's package, purpose.
_TOOLS: tuple[tuple[str, bool, str, str], ...] = (
    ("ip", True, "iproute2", ""),
    ("tcpdump", False, "tcpdump", "to look at packets"),
    ("ping", False, "iputils-ping", "for exercises"),
    ("ethtool", False, "ethtool", "to look at interfaces"),
    (str(FRR / "zebra"), False, "frr", "for the baseline of conventional routing"),
    ("simple_switch_grpc", False, "p4lang-bmv2", "for --target bmv2"),
)


def _tool(name: str, required: bool, package: str, purpose: str) -> Check:
    found = shutil.which(name)
    mend = f"apt install {package}" + (f" {purpose}" if purpose else "")
    return Check(name, found is not None, required, found or "not on PATH", mend)


def _memory() -> Check:
    available = 0
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    found = f"{available / 2**30:.1f} GiB available"
    return Check("memory", available >= MIN_MEMORY, False, found, "lab wants 1.5 GiB; tiny needs less")


def _cpus() -> Check:
    count = usable_cpus()
    return Check("CPUs", count >= 2, False, str(count), "with one CPU recovery times are not to be trusted")


def _mptcp() -> Check:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP):
            return Check("MPTCP", True, False, "works")
    except OSError as error:
        mend = "a kernel with CONFIG_MPTCP and net.mptcp.enabled=1, for the MPTCP baseline"
        return Check("MPTCP", False, False, error.strerror or str(error), mend)


def report(checks: Iterable[Check]) -> str:
    """Return a line for each check, and the overall result in the last line."""
    found = list(checks)
    missing = [check.name for check in found if check.required and not check.ok]
    verdict = f"missing: {', '.join(missing)}" if missing else "this machine can run mrclab"
    return "\n".join([*(str(check) for check in found), verdict])
