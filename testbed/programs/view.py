"""Give a program on a host its view: management network, /etc/hosts, its NIC device, mrclab's libraries.

The management network is an Ethernet between all hosts. Programs use it to find each other by TCP. It does
not belong to the fabric: it is a bridge in a separate namespace. The network is made when a program first
needs it, and removed with the testbed. `mrclab.hosts.service.addresses` has the network's addresses.

The program runs in a new mount namespace. mrclab's files there are in memory and disappear with the program.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import ExitStack
from pathlib import Path

from mrclab.hosts.service import addresses
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.namespaces import Markers
from mrclab.linux.system import libc
from mrclab.testbed import state
from mrclab.testbed.kernel_ip import speak
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric

INTERFACE = "mgmt0"
BRIDGE = "bridge0"
MTU_BYTES = 1500


def management_namespace(names: Names) -> str:
    """Return the name of the namespace that has the management network's bridge."""
    return f"{names.prefix}-mgmt"


def provide_management(names: Names, fabric: Fabric) -> None:
    """Make the management network of the running testbed, if it does not exist yet.

    Raise InputError if there are too many hosts, MachineError if the kernel has no bridges, and OSError if
    the kernel refuses a request for any other reason.
    """
    if len(fabric.hosts) > addresses.MOST_HOSTS:
        raise InputError(f"the management network has addresses for {addresses.MOST_HOSTS} hosts")
    with state.locked(names):
        if (state.work_dir(names) / "management").exists():
            return
        markers = Markers(state.markers_dir(names))
        namespaces.delete(management_namespace(names), markers)  # an interrupted call may have left it
        namespaces.create(management_namespace(names), markers)
        namespaces.in_thread(lambda: _lay(names, fabric))
        state.work_dir(names).mkdir(parents=True, exist_ok=True)
        (state.work_dir(names) / "management").touch()


def _lay(names: Names, fabric: Fabric) -> None:
    namespaces.enter(management_namespace(names))
    with ExitStack() as stack:
        route = stack.enter_context(rtnetlink.opened())
        try:
            with rtnetlink.refusals("cannot make a bridge"):
                route.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        except OSError as error:
            raise MachineError(str(error), "load the kernel's module 'bridge' (modprobe bridge)") from None
        bridge = socket.if_nametoindex(BRIDGE)
        with rtnetlink.refusals("cannot make the management network"):
            route.link("set", index=bridge, state="up")
            for host in fabric.hosts:
                fd = namespaces.open_fd(names.host(host.name))
                try:
                    peer = {"ifname": INTERFACE, "net_ns_fd": fd, "mtu": MTU_BYTES}
                    route.link("add", ifname=host.name, kind="veth", mtu=MTU_BYTES, peer=peer)
                finally:
                    os.close(fd)
                near = socket.if_nametoindex(host.name)
                route.link("set", index=near, master=bridge, state="up")
    for host in fabric.hosts:
        namespaces.enter(names.host(host.name))
        speak([INTERFACE])
        with rtnetlink.opened() as route, rtnetlink.refusals(f"cannot set the addresses of {host.name}"):
            index = socket.if_nametoindex(INTERFACE)
            route.link("set", index=index, state="up")
            v4, v6 = addresses.ipv4(fabric, host.name), addresses.ipv6(fabric, host.name)
            route.addr("add", index=index, address=str(v4), prefixlen=addresses.IPV4_BITS)
            route.addr("add", index=index, address=str(v6), prefixlen=addresses.IPV6_BITS)


def hosts_file(fabric: Fabric, host: str) -> str:
    """Return /etc/hosts for programs on a host: the content of this machine's file, and names for all hosts.

    The name ``h0`` stands for the IPv4 address of host h0 in the management network, ``h0-ipv6`` for the
    IPv6 address.
    """
    try:
        own = Path("/etc/hosts").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        own = "127.0.0.1 localhost\n"
    lines = [own.rstrip("\n"), f"# The management network of mrclab, as host {host} sees it"]
    for each in fabric.hosts:
        lines.append(f"{addresses.ipv4(fabric, each.name)} {each.name}")
        lines.append(f"{addresses.ipv6(fabric, each.name)} {each.name}-ipv6")
    return "\n".join(lines) + "\n"


CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
DEVICE = "mrc0"
PCI_ADDRESS = "0000:00:00.0"
GID_TYPE_NAMES = {addresses.ROCE_V1: "IB/RoCE v1", addresses.ROCE_V2: "RoCE v2"}
PERMISSION = "run it as root with CAP_SYS_ADMIN (docker run --privileged)"


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode(), flags, data.encode() or None)
    if libc().mount(*words) != 0:
        number = ctypes.get_errno()
        raise MachineError(f"cannot mount {target}: {os.strerror(number)}", PERMISSION)


def enter(names: Names, fabric: Fabric, host: str, folder: Path, libraries: list[Path]) -> Path:
    """Move this process into a host's namespace, and mount the host's files. Return the libraries' directory.

    ``folder`` must exist and be empty. Only this process and its children see the mounts in it. Raise
    MachineError if the system does not permit the mounts.
    """
    namespaces.enter(names.host(host))
    if libc().unshare(CLONE_NEWNS) != 0:
        raise MachineError(f"cannot make a mount namespace: {os.strerror(ctypes.get_errno())}", PERMISSION)
    _mount("none", "/", "none", MS_REC | MS_PRIVATE)
    _mount("mrclab", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    (folder / "lib").mkdir()
    for library in libraries:
        _copy(library, folder / "lib")
    (folder / "hosts").write_text(hosts_file(fabric, host), encoding="utf-8")
    if Path("/etc/hosts").exists():
        _mount(str(folder / "hosts"), "/etc/hosts", "none", MS_BIND)
    _show_devices(fabric, host, folder / "class")
    return folder / "lib"


def _copy(library: Path, target: Path) -> None:
    if library.is_symlink():
        (target / library.name).symlink_to(library.readlink())
    else:
        (target / library.name).write_bytes(library.read_bytes())
        (target / library.name).chmod(0o755)


def _show_devices(fabric: Fabric, host: str, folder: Path) -> None:
    """Mount a /sys/class that shows the interfaces of the namespace, and the NIC."""
    libc().umount2(b"/sys", MNT_DETACH)
    _mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    folder.mkdir()
    for entry in sorted(os.listdir("/sys/class")):
        if not entry.startswith("infiniband"):
            (folder / entry).mkdir()
            _mount(f"/sys/class/{entry}", str(folder / entry), "none", MS_BIND)
    for name, text in device_files(fabric, host).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")
    device = folder / "infiniband" / DEVICE
    (device / PCI_ADDRESS).mkdir()
    (device / "device").symlink_to(PCI_ADDRESS)
    _mount(str(folder), "/sys/class", "none", MS_BIND | MS_REC)


def device_files(fabric: Fabric, host: str) -> dict[str, str]:
    """Return the NIC's files below /sys/class: their names and texts."""
    guid = addresses.guid(fabric, host).hex()
    node_guid = ":".join(guid[n : n + 4] for n in range(0, 16, 4))
    device, port = f"infiniband/{DEVICE}", f"infiniband/{DEVICE}/ports/1"
    files = {
        "infiniband_verbs/abi_version": "6",
        "infiniband_verbs/uverbs0/ibdev": DEVICE,
        "infiniband_verbs/uverbs0/abi_version": "1",
        f"{device}/node_type": "1: CA",
        f"{device}/node_guid": node_guid,
        f"{device}/sys_image_guid": node_guid,
        f"{device}/node_desc": f"mrclab {host}",
        f"{device}/fw_ver": "1.0.1",
        f"{device}/hca_type": "MRC",
        f"{device}/board_id": "mrclab",
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/link_layer": "Ethernet",
        f"{port}/lid": "0x0",
        f"{port}/rate": "1 Gb/sec (1X SDR)",
    }
    for index, gid in enumerate(addresses.gids(fabric, host)):
        words = gid.hex()
        files[f"{port}/gids/{index}"] = ":".join(words[n : n + 4] for n in range(0, 32, 4))
        files[f"{port}/gid_attrs/types/{index}"] = GID_TYPE_NAMES[addresses.GID_TYPES[index]]
        files[f"{port}/gid_attrs/ndevs/{index}"] = fabric.host(host).ports[0].ifname
    return files
