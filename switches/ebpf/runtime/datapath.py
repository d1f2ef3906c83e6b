"""A BPF program that is loaded with its maps and attached to the ports of one switch."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Mapping

from mrclab.linux import bpf
from mrclab.linux.bpf import Map
from mrclab.linux.bpf_types import MapSpec
from mrclab.linux.errors import UnsupportedError
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.switches.ebpf.plan import (
    COUNTER_BYTES,
    Compiled,
    RegisterLayout,
    Shape,
    counter_chunk,
    split_place,
)
from mrclab.switches.v1model.declarations import loops
from mrclab.switches.v1model.program import Program

# Parts of the verifier's error messages for a program that is too large, or a loop that may be endless.
_TOO_MUCH = ("too large", "too complex")
_ENDLESS = (*_TOO_MUCH, "infinite loop", "back-edge")
_SEARCHED = ("scan", "tuples")  # kinds of tables whose look-up is a loop of many instructions


def new_map(spec: MapSpec) -> Map:
    """Create a map with its initial contents."""
    made = Map(spec)
    if spec.initial is not None:
        made.update(bytes(4), spec.initial)
    return made


def _load(code: bytes, name: str, compiled: Compiled) -> int:
    """Load a program into the kernel.

    Raise UnsupportedError if a loop or the tables are too much for the kernel's verifier. If the verifier
    rejects the program for another reason, raise RefusedError with the place in the P4 program.
    """
    try:
        return bpf.load_program(code, name)
    except bpf.RefusedError as exc:
        place = None if exc.instruction is None else compiled.source_map.place_at(exc.instruction)
        if any(reason in str(exc) for reason in _ENDLESS) and (loop := _loop(compiled.program, place)):
            raise loop from exc
        searched = [t for t in compiled.program.tables() if compiled.plan.tables[t.name].kind in _SEARCHED]
        if not searched or not any(reason in str(exc) for reason in _TOO_MUCH):
            raise exc.at(place) from exc
        names = ", ".join(f"{t.name} ({t.source})" for t in searched)
        raise UnsupportedError(
            f"a program with so many tables to search: {names}", str(searched[0].source)
        ) from exc


def _loop(program: Program, place: str | None) -> UnsupportedError | None:
    """Return an error for the action at a place in the P4 program if this action has a loop, else None."""
    name, where = split_place(place or "")
    for action in program.actions.values():
        if name == f"action {action.name}" and loops(action):
            construct = f"a loop in {name} that the kernel's verifier finds no end of"
            return UnsupportedError(construct, where or program.file)
    return None


class SharedMaps:
    """Maps that all switches of a process share: scratch memory, which is used by one frame at a time.

    `mark` is skb->mark of frames that a switch has sent to itself (see `codegen/recirculation`).
    """

    def __init__(self) -> None:
        self.mark = secrets.randbits(32) | 1
        self._maps: dict[tuple[Compiled, int], Map] = {}

    def get(self, compiled: Compiled, index: int) -> Map:
        """Return the shared map at an index of a program's plan. The first call creates the map."""
        key = (compiled, index)
        if key not in self._maps:
            self._maps[key] = new_map(compiled.plan.maps[index])
        return self._maps[key]

    def release(self, compiled: Compiled) -> None:
        """Close the descriptors of a program's shared maps. Attached programs stay loaded."""
        for key in [key for key in self._maps if key[0] is compiled]:
            self._maps.pop(key).close()

    def close(self) -> None:
        """Close all descriptors. The kernel keeps the maps of programs that are still attached."""
        for m in self._maps.values():
            m.close()
        self._maps.clear()


class Datapath:
    """One switch in the kernel: a program with its own maps.

    `ports` maps port numbers to interface names of the current network namespace.
    """

    def __init__(self, name: str, compiled: Compiled, ports: Mapping[int, str], shared: SharedMaps) -> None:
        self.name = name
        self.compiled = compiled
        self.ifindexes = {port: ifindex_of(interface) for port, interface in ports.items()}
        self.maps: list[Map] = []
        self._own: list[Map] = []
        self.attached: list[int] = []
        self._served: list[int] = []  # ifindexes of the interfaces whose frames the program processes
        self.fd = -1
        try:
            for i, spec in enumerate(compiled.plan.maps):
                if spec.shared:
                    self.maps.append(shared.get(compiled, i))
                else:
                    self.maps.append(new_map(spec))
                    self._own.append(self.maps[-1])
            for port, ifindex in self.ifindexes.items():
                number, index = struct.pack("=I", port), struct.pack("=I", ifindex)
                self.maps[compiled.plan.port_map].update(number, index)
                self.maps[compiled.plan.ifindex_map].update(index, number)
                self._served.append(ifindex)
            if compiled.plan.identity_map is not None:
                names = struct.pack("=II", shared.mark, secrets.randbits(32))
                self.maps[compiled.plan.identity_map].update(bytes(4), names)
            code = bpf.relocate(compiled.code, [m.fd for m in self.maps])
            self.fd = _load(code, name, compiled)
            if compiled.plan.self_map is not None:
                self.maps[compiled.plan.self_map].update(bytes(4), struct.pack("=I", self.fd))
        except BaseException:
            self.close_descriptors()
            raise

    def attach(self, tc: TrafficControl, replace: bool = False) -> None:
        """Start forwarding on every port.

        If `replace` is true, replace the attached program. Otherwise each port gets a new clsact qdisc.
        """
        for ifindex in self.ifindexes.values():
            if not replace:
                tc.add_clsact(ifindex)
            self.attached.append(ifindex)
            tc.add_filter(ifindex, self.fd, self.name)

    def forget_ports(self) -> None:
        """Stop processing frames. The program stays attached and drops all frames of its ports."""
        ports = self.maps[self.compiled.plan.ifindex_map]
        while self._served:
            ports.delete(struct.pack("=I", self._served.pop()))

    def detach(self, tc: TrafficControl) -> None:
        """Stop forwarding and remove the clsact qdiscs of the ports."""
        for ifindex in self.attached:
            tc.remove_clsact(ifindex)
        self.attached.clear()

    def close_descriptors(self) -> None:
        """Close the descriptors of program and maps. The kernel keeps an attached program and its maps."""
        for m in self._own:
            m.close()
        self._own.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def set_queue(self, port: int, shape: Shape | None) -> None:
        """Set the parameters of a port's queue. `shape` is None if the port has no known queue."""
        if self.compiled.plan.queue_map is None:
            return
        queues, key = self.maps[self.compiled.plan.queue_map], struct.pack("=I", port)
        if shape is not None:
            queues.update(key, shape.encode())
        elif queues.lookup(key) is not None:
            queues.delete(key)

    def cells(self, map_index: int, count: int) -> list[tuple[int, int]]:
        """Return all cells of a counter map, summed over CPUs: (packets, bytes)."""
        chunk = counter_chunk(count)
        out: list[tuple[int, int]] = []
        for element in range(-(-count // chunk)):
            out += self._chunk(map_index, element, chunk)
        return out[:count]

    def cell(self, map_index: int, count: int, index: int) -> tuple[int, int]:
        """Return one cell of a counter map, summed over CPUs: (packets, bytes)."""
        chunk = counter_chunk(count)
        raw = self._raw(map_index, index // chunk)
        at, stride = index % chunk * COUNTER_BYTES, chunk * COUNTER_BYTES
        pairs = [struct.unpack_from("=QQ", raw, at + base) for base in range(0, len(raw), stride)]
        return sum(p for p, _ in pairs), sum(b for _, b in pairs)

    def register_cells(self, register: RegisterLayout, indexes: range) -> list[int]:
        """Return cells of a register array, read one by one. Between two reads, a frame may change cells."""
        return [self._register_cell(register, i) for i in indexes]

    def _register_cell(self, register: RegisterLayout, index: int) -> int:
        memory, size = self.maps[register.map].memory(), register.cell_size
        at = index * size
        raw = memory[at : at + size]
        while size > 8 and (again := memory[at : at + size]) != raw:  # repeat if a frame wrote the cell
            raw = again
        return int.from_bytes(raw, "little")

    def set_register_cell(self, register: RegisterLayout, index: int, value: int) -> None:
        """Write a cell of a register array. The write is atomic if a cell has at most 64 bits."""
        memory, size = self.maps[register.map].memory(), register.cell_size
        memory[index * size : (index + 1) * size] = value.to_bytes(size, "little")

    def _raw(self, map_index: int, element: int) -> bytes:
        raw = self.maps[map_index].lookup(struct.pack("=I", element))
        assert raw is not None  # an array map has a value for every index
        return raw

    def _chunk(self, map_index: int, element: int, chunk: int) -> list[tuple[int, int]]:
        raw = self._raw(map_index, element)
        stride = chunk * COUNTER_BYTES
        packets, octets = [0] * chunk, [0] * chunk
        for base in range(0, len(raw), stride):
            if not any(raw[base : base + stride]):
                continue
            numbers = struct.unpack_from(f"={2 * chunk}Q", raw, base)
            packets = [a + b for a, b in zip(packets, numbers[0::2], strict=True)]
            octets = [a + b for a, b in zip(octets, numbers[1::2], strict=True)]
        return list(zip(packets, octets, strict=True))
