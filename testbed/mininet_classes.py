"""Mininet's classes and command line for a running testbed.

``links`` makes the namespaces and cables. These classes show the namespaces and cables as Mininet's nodes and
links, with Mininet's Python API, in any process. A node's shell starts at its first use. The command line
also has commands of ``mrclab``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

from mininet.cli import CLI
from mininet.link import Intf, Link
from mininet.log import error, output
from mininet.net import Mininet
from mininet.node import Host, Node, Switch
from mininet.topo import Topo

from mrclab.hosts.path_probe import PathProber, probed_paths
from mrclab.linux import namespaces
from mrclab.linux.errors import MrclabError
from mrclab.linux.processes import environment, python
from mrclab.p4src.targets import PORT_DOWN_HALTS, capabilities_of
from mrclab.testbed import links
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.topologies import Fabric

_MNEXEC_IN_BASH = {"BASH_FUNC_mnexec%%": r"""() { shift; ( printf '\001%d\n' $BASHPID; exec "$@" ); }"""}
"""A shell function in place of Mininet's helper program mnexec, which need not be installed.

Mininet runs "mnexec -p COMMAND" in a node's shell to get the command's pid.
"""


class FabricTopo(Topo):  # type: ignore[misc]
    """A fabric as a Mininet topology."""

    def build(self, fabric: Fabric, names: Names, run_id: str) -> None:
        """Add every host, switch and link of the fabric."""
        common = {"run_id": run_id}
        for host in fabric.hosts:
            self.addHost(host.name, namespace=names.host(host.name), **common)
        for switch in fabric.switches:
            dpid = f"{switch.device_id:016x}"
            self.addSwitch(switch.name, namespace=names.fabric, dpid=dpid, inNamespace=True, **common)
        macs = {port.ref: port.mac for switch in fabric.switches for port in switch.ports}
        macs |= {port.ref: port.mac for host in fabric.hosts for port in host.ports}
        for link in fabric.links:
            self.addLink(
                link.a.node,
                link.b.node,
                port1=link.a.port,
                port2=link.b.port,
                addr1=macs[link.a].hex(":"),
                addr2=macs[link.b].hex(":"),
            )


class _NamespaceNode(Node):  # type: ignore[misc]
    """A Mininet node in a named namespace. Its shell starts when it is first needed."""

    isSetup = True  # noqa: N815  (Mininet's name; its own set-up needs ifconfig)

    def __init__(self, name: str, *, namespace: str, run_id: str, **params: Any) -> None:
        self.namespace = namespace
        self.run_id = run_id
        self._pid: int | None = None
        self._starting = False
        self._built = False
        super().__init__(name, **params)
        self._built = True

    @property
    def pid(self) -> int | None:
        """The pid of the node's shell. If no shell runs, it is started."""
        self._need_shell()
        return self._pid

    @pid.setter
    def pid(self, value: int | None) -> None:
        self._pid = value

    def _need_shell(self) -> None:
        if self._built and not self._starting and self.shell is None:
            self._starting = True
            try:
                super().startShell()
            finally:
                self._starting = False

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802
        """Start the shell. Do nothing if the constructor calls this method."""
        if self._built:
            self._need_shell()

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        # Mininet starts a shell with "mnexec -cdn" and other programs with "mnexec -da PID". Both run in the
        # node's namespace, in a new session, without open descriptors. `ip netns exec` and Popen do the same
        # here.
        own = {RUN_VARIABLE: self.run_id, **_MNEXEC_IN_BASH}
        environment = {**(params.pop("env", None) or os.environ), **own}
        if cmd[:1] == ["mnexec"]:
            program = cmd[3:] if cmd[1:2] == ["-da"] else cmd[2:]
            cmd = ["ip", "netns", "exec", self.namespace, *program]
            params |= {"start_new_session": True, "close_fds": True}
        return subprocess.Popen(cmd, env=environment, **params)

    def sendCmd(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Send a command to the node's shell."""
        self._need_shell()
        return super().sendCmd(*args, **kwargs)

    def cmd(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command in the node's shell and return its output."""
        self._need_shell()
        return super().cmd(*args, **kwargs)

    def config(self, **_params: Any) -> dict[str, Any]:
        """Do nothing, because addresses and links are already configured."""
        return {}

    def cleanup(self) -> None:
        """End the shell, if one runs."""
        super().cleanup()
        self._pid = None

    def terminate(self) -> None:
        """End the shell, if one runs. The namespace and its interfaces stay."""
        built, self._built = self._built, False
        try:
            super().terminate()
        finally:
            self._built = built

    def deleteIntfs(self, checkName: bool = True) -> None:  # noqa: N802, N803
        """Do nothing, because the interfaces belong to the testbed and must stay."""

    def __repr__(self) -> str:
        intfs = ",".join(self.intfNames())
        return f"<{type(self).__name__} {self.name}: {intfs} namespace={self.namespace}>"


class MrcHost(_NamespaceNode, Host):  # type: ignore[misc]
    """A host with one NIC, which has one port in each plane."""


class FabricSwitch(_NamespaceNode, Switch):  # type: ignore[misc]
    """A switch of the fabric. The target (BMv2 or eBPF) starts and stops the switch; Mininet does not."""

    controlIntf = None  # noqa: N815

    def start(self, controllers: object) -> None:
        """Do nothing, because the switch already runs."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        """End the switch's shell. The switch itself continues to run."""
        self.terminate()


class FabricIntf(Intf):  # type: ignore[misc]
    """An interface that exists already."""

    def config(self, **_params: Any) -> dict[str, Any]:
        """Do nothing, because the interface is already configured."""
        return {}

    def updateIP(self) -> str | None:  # noqa: N802
        """Return the address that was given to this object, None if the host's kernel has no IP address."""
        address: str | None = self.ip
        return address

    def set_link(self, up: bool) -> None:
        """Bring the interface up or take it down."""
        links.set_up(self.node.namespace, self.name, up=up)

    def isUp(self, setUp: bool = False) -> bool:  # noqa: N802
        """Return True if the interface is up. If ``setUp``, bring it up first."""
        if setUp:
            self.set_link(True)
            return True
        return "UP" in self.node.cmd(f"ip -br link show dev {self.name}")

    def delete(self) -> None:
        """Do nothing, because the interface belongs to the testbed."""


class FabricLink(Link):  # type: ignore[misc]
    """A cable that exists already."""

    @classmethod
    def makeIntfPair(cls, *_args: Any, **_kwargs: Any) -> None:  # noqa: N802
        """Do nothing, because the interfaces exist already."""

    def delete(self) -> None:
        """Do nothing, because the cable belongs to the testbed."""


class FabricMininet(Mininet):  # type: ignore[misc]
    """A testbed as a Mininet object. ``stop`` ends the shells; the testbed stays up."""

    inited = True  # keeps Mininet from changing limits of the whole system

    def __init__(self, fabric: Fabric, names: Names, run_id: str, target: str = "") -> None:
        self.target = target
        self.fabric, self.names = fabric, names
        super().__init__(
            topo=FabricTopo(fabric=fabric, names=names, run_id=run_id),
            host=MrcHost,
            switch=FabricSwitch,
            link=FabricLink,
            intf=FabricIntf,
            controller=None,
        )

    def stop(self) -> None:
        """End every shell that this object has started."""
        for node in (*self.hosts, *self.switches):
            node.terminate()

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:  # noqa: N802
        """Take a link down or bring it up (the command ``link a b down`` of the command line)."""
        if src not in self.nameToNode or dst not in self.nameToNode:
            error(f"no such node: {src if src not in self.nameToNode else dst}\n")
            return
        pairs = self.nameToNode[src].connectionsTo(self.nameToNode[dst])
        if not pairs:
            error(f"no link between {src} and {dst}\n")
        switches = {
            node.name for node in (self.nameToNode[src], self.nameToNode[dst]) if node in self.switches
        }
        if pairs and switches and not capabilities_of(self.target).ports_can_go_down:
            error(f"{PORT_DOWN_HALTS}: use 'mrclab fault'\n")
            return
        for near, far in pairs:
            near.set_link(status == "up")
            far.set_link(status == "up")


_HELP = """\
On this fabric:
  status                              the switches and what they count
  probe h0 h2                         the time of every hop, there and back
  pingall                             a path probe between all pairs of hosts
  perf write_bw --from h0 --to h2     MRC writes, as perftest prints them
  fault                               all kinds of fault
  fault blackhole p0-t0-0:p0-t1-0     break a link in silence
  restore --all                       undo all faults
"""


class FabricCLI(CLI):  # type: ignore[misc]
    """Mininet's command line with more commands. A hyphen is part of a word, as in names of switches."""

    prompt = "mrclab> "
    identchars = CLI.identchars + "-"

    def getLocals(self) -> Mapping[str, Any]:  # noqa: N802
        """Return the names for the command ``py``: ``net`` and the nodes, with '_' in place of '-'."""
        self.locals.update({name.replace("-", "_"): self.mn[name] for name in self.mn})
        return dict(self.locals)

    def default(self, line: str) -> None:
        """Run a command at a node. Refuse ``h0 ping h6`` if the hosts' kernels have no address."""
        words = line.split()
        if len(words) > 1 and words[0] in self.mn and words[1] in ("ping", "ping6") and self._silent():
            return
        super().default(line)

    def onecmd(self, line: str) -> bool:
        """Run a line. If it fails, print the error and continue with the next line."""
        try:
            return bool(super().onecmd(line))
        except (AttributeError, LookupError, OSError, TypeError, ValueError, MrclabError) as failed:
            error(f"*** {line.split()[0]}: {failed}\n")
            return False

    def do_help(self, line: str) -> None:
        """List the commands, or explain a command."""
        super().do_help(line)
        if not line:
            output(_HELP)

    def _mrclab(self, command: str, line: str) -> None:
        """Run a command of ``mrclab`` on this fabric."""
        subprocess.run([*python("mrclab"), command, *shlex.split(line)], env=environment(), check=False)

    def do_probe(self, line: str) -> None:
        """Time every hop of a path: probe h0 h2."""
        self._mrclab("probe", line)

    def do_perf(self, line: str) -> None:
        """Measure MRC writes: perf write_bw --from h0 --to h2."""
        self._mrclab("perf", line)

    def do_fault(self, line: str) -> None:
        """Make a fault: fault blackhole p0-t0-0:p0-t1-0. Without arguments, list the kinds of faults."""
        self._mrclab("fault", line)

    def do_restore(self, line: str) -> None:
        """Undo a fault: restore p0-t0-0:p0-t1-0, or restore --all."""
        self._mrclab("restore", line)

    def do_status(self, line: str) -> None:
        """Show the switches and their counters."""
        self._mrclab("status", line)

    def do_dpctl(self, _line: str) -> None:
        """Print an error: the switches speak P4Runtime, not OpenFlow."""
        error("these switches have no OpenFlow: use 'status', or 'mrclab shell SWITCH' in another terminal\n")

    def do_switch(self, _line: str) -> None:
        """Print an error: to stop a switch, the user must enter `fault`."""
        error("use 'fault switch-death SWITCH' and 'restore SWITCH'\n")

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        """Open a terminal at nodes; without a display, print the command that opens a shell there."""
        if os.environ.get("DISPLAY"):
            super().do_xterm(line, term)
            return
        for word in line.split():
            if word in self.mn:
                error(f"no display: ip netns exec {self.mn[word].namespace} bash\n")

    def do_source(self, line: str) -> None:
        """Run the commands of a file."""
        if line and not os.path.isfile(line.split()[0]):
            error(f"no file {line.split()[0]}\n")
            return
        super().do_source(line)

    def do_pingall(self, line: str) -> None:
        """Ping between all hosts; if hosts have no IP address, send path probes between all pairs."""
        if self._speaks_ip():
            super().do_pingall(line)
        else:
            self._probe_all()

    def do_pingallfull(self, line: str) -> None:
        """Do the same as pingall, and show all times."""
        if self._speaks_ip():
            super().do_pingallfull(line)
        else:
            self._probe_all(times=True)

    def do_pingpair(self, line: str) -> None:
        """Ping between the first two hosts."""
        if not self._silent():
            super().do_pingpair(line)

    def do_pingpairfull(self, line: str) -> None:
        """Ping between the first two hosts, and show all times."""
        if not self._silent():
            super().do_pingpairfull(line)

    def do_iperf(self, line: str) -> None:
        """Measure TCP between two hosts."""
        if not self._silent():
            super().do_iperf(line)

    def do_iperfudp(self, line: str) -> None:
        """Measure UDP between two hosts."""
        if not self._silent():
            super().do_iperfudp(line)

    def _probe_all(self, *, times: bool = False) -> None:
        """From each host, send a path probe to the T0 of each other host and back.

        The probe uses the first path between the two hosts.
        """
        fabric, names = self.mn.fabric, self.mn.names
        hosts = [host.name for host in fabric.hosts]
        output("*** mrclab: path probes to the T0 of each other host and back\n")
        sent = came = 0
        for source in hosts:
            with namespaces.inside(names.host(source)):
                prober = PathProber(fabric, source)
            output(f"{source} -> ")
            with prober:
                for target in hosts:
                    if target == source:
                        continue
                    echo = prober.probe(probed_paths(fabric, source, target)[0])
                    sent, came = sent + 1, came + (echo is not None)
                    took = f"({echo.rtt_ns / 1e3:.0f} us)" if echo and times else ""
                    output(f"{target if echo else 'X'}{took} ")
            output("\n")
        output(f"*** Results: {100 - 100 * came // max(1, sent)}% dropped ({came}/{sent} received)\n")

    def _speaks_ip(self) -> bool:
        """Return True if a host's kernel has an IP address."""
        return any(intf.updateIP() for host in self.mn.hosts for intf in host.intfList())

    def _silent(self) -> bool:
        """Return True if no host's kernel has an IP address. If so, print commands that work without IP."""
        if self._speaks_ip():
            return False
        hosts = [host.name for host in self.mn.hosts]
        first, last = hosts[0], hosts[-1]
        error(
            "the hosts' kernels have no address, so nothing answers a ping: their NICs are mrclab's. Use\n"
            f"  probe {first} {last}                           (times there and back, hop by hop)\n"
            f"  perf write_lat --from {first} --to {last}      (MRC writes)\n"
        )
        return True

    def waitForNode(self, node: Node) -> None:  # noqa: N802
        """Print a command's output until it ends.

        At a terminal, the user's input goes to the command during this time. If the commands come from a
        script, the script's next lines do not go to the running command.
        """
        if self.isatty():
            super().waitForNode(node)
            return
        while node.waiting:
            output(node.monitor())
