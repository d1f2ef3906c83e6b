"""Where in a frame each header can lie: what the deparser need not find out for every frame.

The parser is followed through every state at every position, as it is written (`parser_gen`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from switches.bmv2_json import Name, Program


@dataclass(frozen=True)
class At:
    """Where the parser is: bytes consumed, and the next free element of each stack."""

    offset: int
    stacks: tuple[tuple[str, int], ...] = ()

    def next_index(self, stack: str) -> int:
        """Elements of a stack extracted so far."""
        return dict(self.stacks).get(stack, 0)

    def extracted(self, stack: str) -> At:
        """The same place with one more element of a stack."""
        counts = dict(self.stacks)
        counts[stack] = counts.get(stack, 0) + 1
        return replace(self, stacks=tuple(sorted(counts.items())))


_LIMIT = 4096  # steps of the search; a parser with more is not written anyway


def find_places(program: Program) -> dict[str, frozenset[int]] | None:
    """The offsets in bytes at which each header can be extracted.

    None where headers cannot be relied on to go out in the order in which they came in, each once and with
    nothing between them.
    """
    ranks = {name: i for i, name in enumerate(program.deparser.order)}
    places: dict[str, set[int]] = defaultdict(set)
    start = program.parser.start
    pending: list[tuple[str | None, At, int]] = [(start, At(0), -1)]
    seen = set(pending)
    while pending:
        name, at, last = pending.pop()
        if name is None:
            continue
        state = program.parser.states[name]
        full = False
        for op in state.ops:
            if op.op in ("advance", "shift", "extract_VL"):
                return None
            if op.op != "extract":
                continue
            target = op.args[0]
            if not isinstance(target, Name) or target.kind not in ("header", "header_stack"):
                return None
            header, after = target.name, at
            if target.kind == "header_stack":
                members, index = program.stacks[header].members, at.next_index(header)
                full = index >= len(members)
                if full:  # the parser stops here
                    break
                header, after = members[index], at.extracted(header)
            if ranks.get(header, -1) <= last:
                return None
            last = ranks[header]
            places[header].add(at.offset)
            at = replace(after, offset=at.offset + program.headers[header].type.bits // 8)
        if full:
            continue
        for t in state.transitions:
            step = (t.next, at, last)
            if step not in seen:
                seen.add(step)
                pending.append(step)
        if len(seen) > _LIMIT:
            return None
    return {header: frozenset(offsets) for header, offsets in places.items()}
