"""EV profiles, which a controller (a program that controls the NIC) creates and changes.

Profile 0 belongs to the NIC. Queue pairs use profile 0 if they name no other profile. The NIC chooses the EVs
of profile 0 (mode AUTO). These EVs have 32 bits and contain the plane and the T1 of the path. A controller
may query, deny, allow and watch these EVs.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.evs.ev_modes import EV_BITS, EvEntry, EvField, EvMode, check_fields, generate
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import (
    EVENT_STATES,
    MOST_EVS,
    NO_EVENTS,
    SET_STATES,
    EvProfile,
    EvStates,
    ProfileError,
)
from mrclab.hosts.service.control import abi
from mrclab.hosts.service.control.abi import EvOp, EvsMask, Mode, State
from mrclab.hosts.service.control.formats import (
    MOST_FIELDS,
    ControlError,
    Formats,
    check_current,
    check_step,
    invalid,
    room,
)
from mrclab.hosts.service.shared_memory import ProgramMemory

DEFAULT = 0
MODES = {Mode.AUTO: EvMode.AUTO, Mode.EXPLICIT: EvMode.EXPLICIT, Mode.GENERATED: EvMode.GENERATED}
_SHAPE = EvsMask.MODE | EvsMask.FORMAT | EvsMask.COUNT | EvsMask.MIN_ACTIVE


@dataclass(frozen=True, slots=True)
class EvsDraft:
    """The draft of an EV profile (see `formats`). Only the NIC has the current EVs of an ONLINE profile."""

    state: State = State.INIT
    mode: Mode | None = None
    format: int | None = None
    count: int = 0
    min_active: int | None = None
    events: EvStates | None = None
    fields: tuple[EvField, ...] = ()
    entries: tuple[EvEntry, ...] = ()
    denied: frozenset[EvEntry] = frozenset()

    @property
    def bits(self) -> int:
        """Number of bits of an EV."""
        return sum(field.bits for field in self.fields) if self.fields else EV_BITS


class EvProfiles:
    """The EV profiles of a NIC."""

    def __init__(self, endpoint: Endpoint, profiles: NicProfiles, formats: Formats) -> None:
        self._profiles, self._formats = profiles, formats
        self._ports = len(endpoint.ports)
        least = endpoint.config.ev_min_active
        count = max(MOST_EVS // 16, least)
        core = profiles.create_evs(DEFAULT)
        core.configure(EvMode.AUTO, count)
        core.put_online(least)
        own = EvsDraft(State.ONLINE, Mode.AUTO, None, count, least, NO_EVENTS)
        self._drafts: dict[int, EvsDraft] = {DEFAULT: own}

    def bits(self, number: int) -> int:
        """Return the number of bits of a profile's EVs."""
        return self._drafts.get(number, EvsDraft()).bits

    def modify(self, memory: ProgramMemory, number: int, address: int, mask: int) -> None:
        """Change the attributes and EVs of an EV profile, then the state of the profile.

        Raise ControlError if a change is not valid.
        """
        wanted = EvsMask(mask)
        if number != DEFAULT:
            room(self._drafts, number)
        elif wanted & (_SHAPE | EvsMask.STATE | EvsMask.FIELDS_OP):
            raise ControlError(errno.EPERM, "of the NIC's own profile only EVs and events change")
        if wanted & EvsMask.EV_OP and wanted & EvsMask.FIELDS_OP:
            raise invalid("one operation at a time")
        values = abi.EVS.unpack(memory.read(address, abi.EVS.size))
        new, current, op, entries, count, fields_op, fields, fields_count = (*values[:2], *values[7:13])
        before = self._drafts.get(number, EvsDraft())
        if wanted & EvsMask.CURRENT:
            check_current(before.state, current)
        draft = self._attributes(before, wanted, values)
        if wanted & EvsMask.FIELDS_OP:
            if before.state is State.ONLINE or fields_op != abi.MODIFY:
                raise invalid("fields change while the profile is not ONLINE")
            draft = replace(draft, fields=_fields(memory, fields, fields_count))
        if wanted & EvsMask.EV_OP:
            draft = self._change(memory, number, draft, op, entries, count)
        if wanted & EvsMask.STATE:
            draft = self._step(number, draft, check_step(before.state, new))
        self._drafts[number] = draft
        if draft.state is State.ONLINE and draft.events is not None:
            self._profiles.evs[number].event_mask = draft.events

    def _attributes(self, draft: EvsDraft, wanted: EvsMask, values: Sequence[int]) -> EvsDraft:
        mode, format_, count, min_active, events = values[2:7]
        if wanted & _SHAPE and draft.state is State.ONLINE:
            raise invalid("mode, format, count and least number are set while the profile is not ONLINE")
        if wanted & EvsMask.MODE:
            if mode not in tuple(Mode):
                raise invalid(f"no EV mode {mode}")
            draft = replace(draft, mode=Mode(mode))
        if wanted & EvsMask.FORMAT:
            draft = replace(draft, format=format_)
        if wanted & EvsMask.COUNT:
            if count > MOST_EVS:
                raise ControlError(errno.E2BIG, f"{count} EVs are more than {MOST_EVS}")
            draft = replace(draft, count=count)
        if wanted & EvsMask.MIN_ACTIVE:
            draft = replace(draft, min_active=min_active)
        if wanted & EvsMask.EVENTS:
            if events & ~EVENT_STATES:
                raise invalid("there are events for GOOD and ASSUMED_BAD only")
            draft = replace(draft, events=EvStates(events))
        return draft

    def _step(self, number: int, draft: EvsDraft, new: State) -> EvsDraft:
        old = draft.state
        if new is State.INIT:
            return EvsDraft()
        if old is State.INIT and new is State.OFFLINE:
            return self._offline(replace(draft, state=new))
        if old is State.OFFLINE and new is State.ONLINE:
            self._make(number, draft)
        elif old is State.ONLINE and new is State.OFFLINE:
            core = self._profiles.evs[number]
            entries, denied = tuple(core.entries), frozenset(core.denied)
            try:
                core.go_offline()
            except ProfileError as error:
                raise ControlError.of(error) from None
            core.reset()
            self._profiles.destroy(core)
            if draft.mode is not Mode.AUTO:
                draft = replace(draft, entries=entries, denied=denied)
        return replace(draft, state=new)

    def _offline(self, draft: EvsDraft) -> EvsDraft:
        if draft.mode is None or not draft.count:
            raise invalid("an OFFLINE profile has a mode and a count")
        if draft.mode is Mode.AUTO:
            return draft
        if draft.format is None or not draft.fields:
            raise invalid(f"{draft.mode.name} needs a format and fields")
        try:
            check_fields(draft.fields, self._formats.online(draft.format).widths)
        except ValueError as error:
            raise invalid(str(error)) from None
        entries = [EvEntry()] * draft.count
        if draft.mode is Mode.GENERATED:
            evs = [ev for ev, _ in zip(generate(draft.fields), range(draft.count), strict=False)]
            entries = [EvEntry(ev, port) for port in range(1, self._ports + 1) for ev in evs]
        return replace(draft, entries=tuple(entries))

    def _make(self, number: int, draft: EvsDraft) -> None:
        if draft.min_active is None or draft.events is None:
            raise invalid("an ONLINE profile has a least number of EVs and an event mask")
        assert draft.mode is not None
        format_ = None if draft.format is None else self._formats.online(draft.format)
        core = self._profiles.create_evs(number)
        try:
            core.configure(MODES[draft.mode], draft.count, format_, draft.fields)
            if draft.mode is Mode.EXPLICIT:
                core.set_entries(0, draft.entries)
            elif draft.mode is Mode.GENERATED:
                core.generate(range(1, self._ports + 1))
            core.set_states([(entry, EvStates.DENIED) for entry in draft.denied])
            core.put_online(draft.min_active, draft.events)
        except ProfileError as error:
            if core.state.name != State.INIT.name:
                core.reset()
            self._profiles.destroy(core)
            raise ControlError.of(error) from None

    def _change(
        self, memory: ProgramMemory, number: int, draft: EvsDraft, op: int, address: int, count: int
    ) -> EvsDraft:
        """Replace EVs or set their states. Stop at the first entry that fails, and raise its error."""
        if op not in (EvOp.REPLACE, EvOp.SET_STATE):
            raise invalid(f"no operation {op} changes EVs")
        if draft.state is State.INIT:
            raise invalid("a profile in INIT has no EVs")
        error: ControlError | None = None
        for old, new, state, flags in self._read(memory, draft.bits, address, count):
            try:
                if op == EvOp.REPLACE:
                    draft = self._replace(number, draft, old, new, all_copies=bool(flags & abi.ALL_COPIES))
                else:
                    draft = self._set(number, draft, old, state)
            except ControlError as refused:
                error = refused
                break
        self._drafts[number] = draft
        if error is not None:
            raise error
        return draft

    def _read(
        self, memory: ProgramMemory, bits: int, address: int, count: int
    ) -> list[tuple[EvEntry, EvEntry, EvStates, int]]:
        if not 0 <= count <= MOST_EVS * self._ports:
            raise ControlError(errno.E2BIG, "too many entries")
        data = memory.read(address, count * abi.ENTRY.size)
        found = []
        try:
            for ev, port, ev_new, port_new, state, flags in abi.ENTRY.iter_unpack(data):
                old = EvEntry(abi.ev_number(ev, bits), port)
                new = EvEntry(abi.ev_number(ev_new, bits), port_new)
                found.append((old, new, EvStates(state), flags))
        except ValueError as error:
            raise invalid(str(error)) from None
        return found

    def _replace(
        self, number: int, draft: EvsDraft, old: EvEntry, new: EvEntry, *, all_copies: bool
    ) -> EvsDraft:
        if draft.mode is not Mode.EXPLICIT:
            raise invalid("only the entries of an EXPLICIT profile are replaced")
        if not new.populated or new.port > self._ports:
            raise invalid("an EV names a port, from 1 on")
        if draft.state is State.ONLINE:
            try:
                self._profiles.evs[number].replace(old, new, all_copies=all_copies)
            except ProfileError as error:
                raise ControlError.of(error) from None
            return draft
        places = [at for at, entry in enumerate(draft.entries) if entry == old]
        if not places:
            raise ControlError(errno.ENOENT, f"no EV {old.ev:#x} on port {old.port}")
        entries = list(draft.entries)
        for at in places if all_copies else places[:1]:
            entries[at] = new
        return replace(draft, entries=tuple(entries), denied=draft.denied & set(entries))

    def _set(self, number: int, draft: EvsDraft, entry: EvEntry, state: EvStates) -> EvsDraft:
        if draft.state is State.ONLINE:
            error = self._profiles.evs[number].set_states([(entry, state)]).error
            if error is not None:
                raise ControlError.of(error)
            return draft
        if state not in SET_STATES:
            raise invalid(f"a controller sets GOOD or DENIED, not {state!r}")
        if entry not in draft.entries:
            raise ControlError(errno.ENOENT, f"no EV {entry.ev:#x} on port {entry.port}")
        denied = draft.denied | {entry} if state is EvStates.DENIED else draft.denied - {entry}
        return replace(draft, denied=denied)

    def query(self, memory: ProgramMemory, number: int, address: int, mask: int) -> None:
        """Write attributes into the controller's structures.

        If an array is too short, write the needed count and raise E2BIG.
        """
        wanted = EvsMask(mask)
        if wanted & EvsMask.EV_OP and wanted & EvsMask.FIELDS_OP:
            raise invalid("one operation at a time")
        values = list(abi.EVS.unpack(memory.read(address, abi.EVS.size)))
        draft = self._drafts.get(number, EvsDraft())
        values[1:7] = (
            *(draft.state, draft.mode or 0, draft.format or 0, draft.count),
            *(draft.min_active or 0, draft.events or 0),
        )
        short = False
        if wanted & EvsMask.FIELDS_OP:
            if values[10] != abi.QUERY:
                raise invalid("a query queries")
            short = values[12] < len(draft.fields)
            if not short:
                packed = [abi.FIELD.pack(f.width, f.init, f.min, f.max, f.mask) for f in draft.fields]
                memory.write(values[11], b"".join(packed))
            values[12] = len(draft.fields)
        if wanted & EvsMask.EV_OP:
            states, entries = self._states(number, draft)
            if values[7] == EvOp.QUERY_STATE:
                self._look_up(memory, draft, states, values[8], values[9])
            elif values[7] == EvOp.QUERY_ARRAY:
                short = values[9] < len(entries)
                if not short:
                    memory.write(values[8], b"".join(_packed(e, draft.bits, states[e]) for e in entries))
                values[9] = len(entries)
            else:
                raise invalid(f"no operation {values[7]} queries EVs")
        values[13] = abi.VENDOR
        memory.write(address, abi.EVS.pack(*values))
        if short:
            raise ControlError(errno.E2BIG, "the array is too short")

    def _states(self, number: int, draft: EvsDraft) -> tuple[dict[EvEntry, EvStates], list[EvEntry]]:
        """Return the state of each EV, and all entries in order. Several entries may have the same EV."""
        if draft.state is State.ONLINE:
            core: EvProfile = self._profiles.evs[number]
            return dict(self._profiles.states(number)), list(core.entries)
        states = dict.fromkeys(draft.entries, EvStates.UNKNOWN)
        return states | dict.fromkeys(draft.denied, EvStates.DENIED), list(draft.entries)

    def _look_up(
        self,
        memory: ProgramMemory,
        draft: EvsDraft,
        states: dict[EvEntry, EvStates],
        address: int,
        count: int,
    ) -> None:
        for at, (entry, new, _, flags) in enumerate(self._read(memory, draft.bits, address, count)):
            if entry not in states:
                raise ControlError(errno.ENOENT, f"no EV {entry.ev:#x} on port {entry.port}")
            place = address + at * abi.ENTRY.size
            memory.write(place, _packed(entry, draft.bits, states[entry], new, flags))


def _fields(memory: ProgramMemory, address: int, count: int) -> tuple[EvField, ...]:
    if not 1 <= count <= MOST_FIELDS:
        raise ControlError(errno.E2BIG, f"EVs have 1 to {MOST_FIELDS} fields")
    data = memory.read(address, count * abi.FIELD.size)
    try:
        return tuple(EvField(*numbers) for numbers in abi.FIELD.iter_unpack(data))
    except ValueError as error:
        raise invalid(str(error)) from None


_NOTHING = EvEntry()


def _packed(entry: EvEntry, bits: int, state: EvStates, new: EvEntry = _NOTHING, flags: int = 0) -> bytes:
    ev, ev_new = abi.ev_array(entry.ev, bits), abi.ev_array(new.ev, bits)
    return abi.ENTRY.pack(ev, entry.port, ev_new, new.port, state, flags)
