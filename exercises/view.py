"""A running exercise as a Mininet network, with Mininet's command line."""

from __future__ import annotations

import ipaddress
from typing import Any

from mininet.net import Mininet
from mininet.topo import Topo

from mrclab.exercises.network import Exercise, interface
from mrclab.exercises.topology import End
from mrclab.testbed.mininet_classes import FabricCLI, FabricIntf, FabricLink, FabricSwitch, MrcHost


class _Topo(Topo):  # type: ignore[misc]
    def build(self, exercise: Exercise) -> None:
        topology, run_id = exercise.plan.topology, exercise.run_id
        for host in topology.hosts:
            self.addHost(host.name, namespace=exercise.namespace(host.name), run_id=run_id)
        for switch in topology.switches:
            place = exercise.namespace(switch.name)
            self.addSwitch(
                switch.name, namespace=place, dpid=f"{switch.device_id:x}", inNamespace=True, run_id=run_id
            )
        for link in topology.links:
            self.addLink(
                link.a.node, link.b.node, port1=link.a.port, port2=link.b.port,
                intfName1=interface(link.a), intfName2=interface(link.b),
            )  # fmt: skip


class ExerciseMininet(Mininet):  # type: ignore[misc]
    """A Mininet network with the nodes of a running exercise. `stop` ends only the shells of these nodes."""

    inited = True  # without this, Mininet would change system-wide limits of the machine

    def __init__(self, exercise: Exercise) -> None:
        super().__init__(
            topo=_Topo(exercise=exercise), host=MrcHost, switch=FabricSwitch, link=FabricLink,
            intf=FabricIntf, controller=None,
        )  # fmt: skip
        for host in exercise.plan.topology.hosts:
            node, address = self.nameToNode[host.name], ipaddress.ip_interface(host.ip)
            intf = node.nameToIntf[interface(End(host.name, 0))]
            intf.ip, intf.prefixLen, intf.mac = str(address.ip), str(address.network.prefixlen), host.mac
            node.cmd(f"cd '{exercise.plan.directory}'")
        for switch in exercise.plan.topology.switches:
            self.nameToNode[switch.name].cmd(f"cd '{exercise.plan.directory}'")

    def stop(self) -> None:
        """End the shell of every node."""
        for node in (*self.hosts, *self.switches):
            node.terminate()


class ExerciseCLI(FabricCLI):
    """Mininet's command line for an exercise."""

    prompt = "exercise> "

    def __init__(self, net: ExerciseMininet, **options: Any) -> None:
        super().__init__(net, **options)
