"""The running emulation: a Mininet network of the fabric, link rates, processes, clean-up."""

from linux.errors import MachineError
from linux.processes import Process
from testbed.clean import Removed
from testbed.doctor import Check, require_machine
from testbed.names import Names, switch_ports
from testbed.network import FabricNetwork, attach
from testbed.state import State

__all__ = [
    "Check",
    "FabricNetwork",
    "MachineError",
    "Names",
    "Process",
    "Removed",
    "State",
    "attach",
    "require_machine",
    "switch_ports",
]
