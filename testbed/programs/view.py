"""The view of a program on a host: the host's network, a file of host names, its device and our libraries.

It is made in a new mount namespace, in memory, and ends with the program.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from mrclab.hosts.service import addresses
from mrclab.linux import namespaces
from mrclab.linux.errors import MachineError
from mrclab.linux.system import libc
from mrclab.testbed.names import Names
from mrclab.testbed.programs.management import hosts_file
from mrclab.topologies import Fabric

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
    """Put the calling process into a host, with its view. Return the directory of the libraries there.

    ``folder`` exists and is empty; mounts there are visible in this view alone. Raise MachineError if
    that is not permitted.
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
    """Show the namespace's own interfaces and the NIC in /sys/class."""
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
    """Return the files of the NIC below /sys/class, with their text."""
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
