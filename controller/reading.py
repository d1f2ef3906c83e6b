"""Reading entities of one kind from a switch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar, cast

import finsy as fy

E = TypeVar(
    "E",
    bound=fy.P4TableEntry
    | fy.P4CounterEntry
    | fy.P4RegisterEntry
    | fy.P4ActionProfileMember
    | fy.P4ActionProfileGroup,
)


async def read_all(switch: fy.Switch, wanted: Iterable[E]) -> list[E]:
    """Return the switch's entries of the wanted tables. Raise finsy.P4ClientError."""
    # finsy declares the overloads of read() as coroutines; it is an asynchronous generator.
    answers = cast(AsyncIterator[E], switch.read(wanted))
    return [entity async for entity in answers]
