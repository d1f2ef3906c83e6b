"""Mininet's command line on a fabric, with the commands of ``mrclab`` that a session needs."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

from mininet.cli import CLI
from mininet.log import error, output
from mininet.node import Node

from mrclab.hosts.path_probe import PathProber, probed_paths
from mrclab.linux import namespaces
from mrclab.linux.children import environment, python
from mrclab.linux.errors import MrclabError

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
    """Mininet's command line. Our switches' names have hyphens, which it would otherwise split at."""

    prompt = "mrclab> "
    identchars = CLI.identchars + "-"

    def getLocals(self) -> Mapping[str, Any]:  # noqa: N802
        """Return the names that ``py`` knows: the nodes', with '_' for '-', and ``net``."""
        self.locals.update({name.replace("-", "_"): self.mn[name] for name in self.mn})
        return dict(self.locals)

    def default(self, line: str) -> None:
        """Run a command at a node; refuse ``h0 ping h6`` where hosts have no address that could answer."""
        words = line.split()
        if len(words) > 1 and words[0] in self.mn and words[1] in ("ping", "ping6") and self._silent():
            return
        super().default(line)

    def onecmd(self, line: str) -> bool:
        """Run a line; a command that fails leaves the prompt, and the rest of a script, as they are."""
        try:
            return bool(super().onecmd(line))
        except (AttributeError, LookupError, OSError, TypeError, ValueError, MrclabError) as failed:
            error(f"*** {line.split()[0]}: {failed}\n")
            return False

    def do_help(self, line: str) -> None:
        """List the commands, or explain one."""
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
        """Break something: fault blackhole p0-t0-0:p0-t1-0; without arguments, list the kinds."""
        self._mrclab("fault", line)

    def do_restore(self, line: str) -> None:
        """Undo a fault: restore p0-t0-0:p0-t1-0, or restore --all."""
        self._mrclab("restore", line)

    def do_status(self, line: str) -> None:
        """Show the switches and their counters."""
        self._mrclab("status", line)

    def do_dpctl(self, _line: str) -> None:
        """Refuse: the switches speak P4Runtime, not OpenFlow."""
        error("these switches have no OpenFlow: use 'status', or 'mrclab shell SWITCH' in another terminal\n")

    def do_switch(self, _line: str) -> None:
        """Refuse: a switch of a fabric ends by a fault."""
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
        """Ping between all hosts; if their kernels speak no IP, send path probes between all pairs."""
        if self._speaks_ip():
            super().do_pingall(line)
        else:
            self._probe_all()

    def do_pingallfull(self, line: str) -> None:
        """Do as pingall, with all times."""
        if self._speaks_ip():
            super().do_pingallfull(line)
        else:
            self._probe_all(times=True)

    def do_pingpair(self, line: str) -> None:
        """Ping between the first two hosts."""
        if not self._silent():
            super().do_pingpair(line)

    def do_pingpairfull(self, line: str) -> None:
        """Ping between the first two hosts, with all times."""
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
        """Send a path probe from each host to the T0 of each other host and back, on the first path."""
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
        """Return True if a host's kernel has an address that can answer."""
        return any(intf.updateIP() for host in self.mn.hosts for intf in host.intfList())

    def _silent(self) -> bool:
        """Return True, and say what to use, where the hosts' kernels speak no IP."""
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

        At a terminal, input during that time goes to the command; a script's next lines do not.
        """
        if self.isatty():
            super().waitForNode(node)
            return
        while node.waiting:
            output(node.monitor())
