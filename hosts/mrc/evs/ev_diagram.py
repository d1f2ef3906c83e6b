"""The diagram of the EV state machine, drawn from its table.

    python -m mrclab.hosts.mrc.evs.ev_diagram FILE       renew the drawing in a document

The diagram is a Mermaid block between two marker comments in the document.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mrclab.hosts.mrc.evs.ev import TRANSITIONS, EvInput
from mrclab.hosts.rdma.events import EvState

BEGIN = "<!-- drawn by mrclab.hosts.mrc.evs.ev_diagram: do not edit -->"
END = "<!-- end of drawing -->"


def diagram() -> str:
    """Return the Mermaid source: one arrow per transition, labelled with all events that cause it."""
    lines = ["stateDiagram-v2", f"    [*] --> {EvState.UNKNOWN.name}"]
    for state in EvState:
        arrows: dict[EvState, list[str]] = {}
        for event in EvInput:
            target = TRANSITIONS[state, event]
            if target is not state:
                arrows.setdefault(target, []).append(event.name.lower().replace("_", " "))
        lines += [f"    {state.name} --> {target.name}: {', '.join(on)}" for target, on in arrows.items()]
    return "\n".join(lines)


def renew(text: str) -> str:
    """Return a document with a new drawing between its markers. Raise ValueError if it has no markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n```mermaid\n{diagram()}\n```\n{END}{tail}"


def main() -> None:
    """Renew the drawing in the document that the command line names."""
    path = Path(sys.argv[1])
    path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
