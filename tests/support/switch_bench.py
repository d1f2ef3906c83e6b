"""A compiled program and the model of the same program. Each frame goes through both (BPF_PROG_TEST_RUN)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from mrclab.linux import bpf
from mrclab.linux.traffic_control import ifindex_of
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.plan import Compiled
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps
from mrclab.switches.ebpf.runtime.entries import Action, Entry, full_mask
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.p4_model import Between, Exact, Interpreter, Masked, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import Namespace

REDIRECT, SHOT = 7, 2
EXAMPLES = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@cache
def compiled(path: Path) -> Compiled:
    return compile_json(path.read_bytes())


class Bench:
    """A loaded program that is not attached, and the model of the same program with the same entries."""

    def __init__(self, ns: Namespace, path: Path) -> None:
        self.ns = ns
        for i in (1, 2, 3):
            ns.pair(f"s{i}", f"h{i}")
        self.program = read_program(path.read_bytes())
        self.shared = SharedMaps()
        ports = {1: "s1", 2: "s2", 3: "s3"}
        self.path = ns.run(lambda: Datapath("bench", compiled(path), ports, self.shared))
        self.index = ns.run(lambda: ifindex_of("s1"))
        self.running = Running(compiled(path), self.path, lambda port: True)
        self.tables = self.running.tables
        self.model = Interpreter(self.program)

    def close(self) -> None:
        self.path.close_descriptors()
        self.shared.close()

    def add(self, table: str, rule: Rule) -> None:
        """Add a rule to the program and the model. If the table has the rule already, do nothing."""
        state = self.tables[table]
        match = []
        for slot, m in zip(state.layout.key, rule.key, strict=True):
            full = full_mask(slot.width)
            match.append(
                {
                    Exact: lambda m=m, f=full: (m.value, f),
                    Prefix: lambda m=m, f=full: (m.value, f ^ (f >> m.length)),
                    Masked: lambda m=m: (m.value, m.mask),
                    Between: lambda m=m: (m.low, m.high),
                }[type(m)]()
            )
        layout = next(a for a in state.layout.actions if a.name == rule.action)
        entry = Entry(tuple(match), rule.priority, Action(layout, rule.args))
        if (entry.match, entry.priority) in state.entries:
            return
        self.do(lambda tx: state.insert(entry, tx))
        self.model.rules.setdefault(table, [])
        self.model.rules[table] = [*self.model.rules[table], rule]

    def remove_all(self, table: str) -> None:
        state = self.tables[table]
        for ident in list(state.entries):
            self.do(lambda tx, i=ident: state.delete(i, tx))  # type: ignore[misc]
        self.model.rules[table] = []

    def do(self, plan: Callable[[Transaction], object]) -> None:
        """Plan a transaction and apply it."""
        tx = Transaction()
        plan(tx)
        self.running.apply(tx)

    def compare(
        self, frame: bytes, view: Callable[[bytes], bytes] = lambda out: out
    ) -> list[tuple[int, bytes]]:
        """Run a frame through the program and the model, and compare. Return the model's output frames.

        `view` removes the parts of a frame that may differ, such as timestamps.
        """
        expected = self.model.run(1, frame)
        code, out, _ = self.ns.run(lambda: bpf.run_once(self.path.fd, frame, self.index))
        if expected and expected[0][0] in self.path.ifindexes:  # otherwise the frame is dropped
            assert code == REDIRECT
            assert view(out).hex() == view(expected[0][1]).hex()
        else:
            assert code == SHOT
        return expected


def bench_of(path: Path) -> Iterator[Bench]:
    ns = Namespace()
    try:
        bench = Bench(ns, path)
        yield bench
        bench.close()
    finally:
        ns.delete()


# Values at the edges of the range cause carries, changes of sign, and shifts by all bits.
def words(width: int) -> st.SearchStrategy[int]:
    top = (1 << width) - 1
    return st.one_of(
        st.sampled_from([0, 1, top, top >> 1, (top >> 1) + 1, top - 1]),
        st.integers(0, top),
        st.integers(0, 300),
    ).map(lambda v: v & top)
