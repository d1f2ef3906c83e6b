"""The profiles of the control API [API]: EV formats, EVs, congestion control; their states and errors.

    INIT -> OFFLINE -> ONLINE -> OFFLINE -> INIT

A profile gets its attributes when it goes to OFFLINE, and may be used while it is ONLINE. A profile can leave
ONLINE only when no queue pair or profile uses it. The EVs of running queue pairs may change, and events
report each change. Congestion control is NSCC with the parameter names of the API, or none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntFlag
from typing import Any

from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.evs.ev_modes import EvEntry, EvField, EvFormat, EvMode, EvRecipe, check_fields, generate

MOST_PROFILES = 256
"""Largest number of profiles of each kind on one NIC."""


class ProfileState(Enum):
    """The states of a profile [API]."""

    INIT = "init"
    OFFLINE = "offline"
    ONLINE = "online"


class ProfileErrno(Enum):
    """The API's names for the reasons why an operation on a profile can fail."""

    E2BIG = "too many"
    EINVAL = "not valid"
    ENOENT = "does not exist"
    EBUSY = "in use"


class ProfileError(ValueError):
    """An operation on a profile failed; `errno` is the reason."""

    def __init__(self, errno: ProfileErrno, detail: str) -> None:
        super().__init__(f"{errno.name}: {detail}")
        self.errno = errno


def invalid(detail: str) -> ProfileError:
    """Return the error for a wrong value or a wrong state."""
    return ProfileError(ProfileErrno.EINVAL, detail)


class Profile:
    """A profile of any kind: its state and its users."""

    kind = "profile"

    def __init__(self, number: int) -> None:
        self.number = number
        """Id of the profile, 64 bits."""
        self.state = ProfileState.INIT
        self.users: set[tuple[str, int]] = set()
        """The queue pairs and profiles that use this profile: kind ("QP" or a profile's kind) and number."""

    def require(self, *states: ProfileState) -> None:
        """Raise EINVAL if the profile's state is none of `states`."""
        if self.state not in states:
            wanted = " or ".join(state.name for state in states)
            raise invalid(f"{self.kind} profile {self.number:#x} is {self.state.name}, not {wanted}")

    def go_online(self) -> None:
        """Go from OFFLINE to ONLINE. Raise EINVAL in any other state."""
        self.require(ProfileState.OFFLINE)
        self.state = ProfileState.ONLINE

    def go_offline(self) -> None:
        """Go back from ONLINE to OFFLINE. Raise EBUSY if the profile has users."""
        self.require(ProfileState.ONLINE)
        if self.users:
            users = ", ".join(sorted(f"{kind} {number:#x}" for kind, number in self.users))
            raise ProfileError(ProfileErrno.EBUSY, f"{self.kind} profile {self.number:#x} is used by {users}")
        self.state = ProfileState.OFFLINE

    def reset(self) -> None:
        """Go back from OFFLINE to INIT."""
        self.require(ProfileState.OFFLINE)
        self.state = ProfileState.INIT


NSCC = "uet-1.0-nscc"
"""The name of the algorithm [API]."""
PARAMETERS: Mapping[str, tuple[str, type[float]]] = {
    "disable_qa": ("disable_qa", bool),
    "adjust_bytes_threshold": ("adjust_bytes_threshold", int),
    "adjust_period_threshold": ("adjust_period_ns", int),
    "base_rtt": ("base_rtt_ns", int),
    "eta": ("eta", float),
    "fi": ("fi", float),
    "fi_scale": ("fi_scale", float),
    "gamma": ("gamma", float),
    "max_md_jump": ("max_md_jump", float),
    "max_cwnd": ("max_cwnd_bytes", int),
    "qa_gate": ("qa_gate", int),
    "qa_threshold": ("qa_threshold_ns", int),
    "target_delay": ("target_delay_ns", int),
}
"""For each parameter of the API: its name in NsccConfig, and its type. Times are in ns, sizes in bytes."""


class CcProfile(Profile):
    """The congestion control of queue pairs."""

    kind = "CC"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.algorithm: str | None = None
        """Name of the algorithm. None: no congestion control, only the fixed window."""
        self.nscc = NsccConfig()

    def configure(
        self,
        algorithm: str | None,
        parameters: Mapping[str, float] | None = None,
        base: NsccConfig | None = None,
    ) -> None:
        """Go to OFFLINE with an algorithm. Missing parameters have the values of `base`.

        Raise EINVAL if the algorithm or a parameter does not exist, or if a value is wrong.
        """
        self.require(ProfileState.INIT)
        given = dict(parameters or {})
        if algorithm not in (None, NSCC):
            raise invalid(f"no algorithm is called {algorithm!r}; there is {NSCC!r}, or none")
        if algorithm is None and given:
            raise invalid("without an algorithm there are no parameters")
        unknown = sorted(set(given) - set(PARAMETERS))
        if unknown:
            raise invalid(f"{NSCC} has no parameter {unknown[0]!r}")
        values: dict[str, Any] = {
            PARAMETERS[name][0]: PARAMETERS[name][1](value) for name, value in given.items()
        }
        try:
            self.nscc = replace(base or NsccConfig(), **values)
        except ValueError as error:
            raise invalid(str(error)) from None
        self.algorithm = algorithm
        self.state = ProfileState.OFFLINE


MOST_EVS = 4096
"""Largest number of entries of one profile."""
EVENTS_KEPT = 256


class EvStates(IntFlag):
    """States of an EV in the control API, which has no SKIP. A set of states is an event mask [API]."""

    GOOD = 1 << 0
    ASSUMED_BAD = 1 << 1
    DENIED = 1 << 2
    UNKNOWN = 1 << 31


NO_EVENTS = EvStates(0)
EVENT_STATES = EvStates.GOOD | EvStates.ASSUMED_BAD
"""States for which events exist: an event reports that an EV has entered one of them."""
SET_STATES = (EvStates.GOOD, EvStates.DENIED)
"""The states that a controller may set."""


@dataclass(frozen=True, slots=True)
class EvEvent:
    """An EV has entered a state that is in the event mask."""

    profile: int
    entry: EvEntry
    state: EvStates
    dropped: int
    """Number of events that were dropped between the previous event and this one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The outcome of a batch of entries: the first `done` entries succeeded, and `error` ended the batch."""

    done: int
    error: ProfileError | None = None


class EvFormatProfile(Profile):
    """The fields of an EV's value in a packet."""

    kind = "EV format"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.mode = EvFormat.STEV
        self.widths: tuple[int, ...] = ()

    def configure(self, mode: EvFormat, widths: Sequence[int]) -> None:
        """Set the mode and the widths (bits), and change to OFFLINE. Raise EINVAL for invalid widths."""
        self.require(ProfileState.INIT)
        if not widths or any(not 1 <= width <= 32 for width in widths):
            raise invalid("a format has fields of 1 to 32 bits")
        if sum(widths) > mode.value:
            raise invalid(f"{mode.name} has {mode.value} bits, not {sum(widths)}")
        self.mode, self.widths = mode, tuple(widths)
        self.state = ProfileState.OFFLINE


class EvProfile(Profile):
    """The EVs of queue pairs. A profile calls `apply` for each change that concerns running queue pairs."""

    kind = "EV"

    def __init__(self, number: int, apply: Callable[[EvProfile, EvEntry, EvStates], None]) -> None:
        super().__init__(number)
        self._apply = apply
        self.mode = EvMode.AUTO
        self.format: EvFormatProfile | None = None
        self.count = 0
        self.fields: tuple[EvField, ...] = ()
        self.entries: list[EvEntry] = []
        """The EVs of the profile. In AUTO mode: the EVs that queue pairs have got."""
        self.denied: set[EvEntry] = set()
        self.min_active = 0
        self.event_mask = EvStates(0)
        self._events: deque[EvEvent] = deque()
        self._dropped = 0

    # State transitions of the profile

    def configure(
        self, mode: EvMode, count: int, format_: EvFormatProfile | None = None, fields: Sequence[EvField] = ()
    ) -> None:
        """Go to OFFLINE with a mode, a number of EVs for each port, and the fields of their values.

        Raise E2BIG on too many EVs, ENOENT if the format is not ONLINE, EINVAL if the fields do not fit.
        """
        self.require(ProfileState.INIT)
        if count > MOST_EVS:
            raise ProfileError(ProfileErrno.E2BIG, f"{count} EVs are more than {MOST_EVS}")
        if count < 1:
            raise invalid("a profile has one EV at least")
        if format_ is not None and format_.state is not ProfileState.ONLINE:
            raise ProfileError(ProfileErrno.ENOENT, f"EV format {format_.number:#x} is not online")
        if mode is not EvMode.AUTO and (format_ is None or not fields):
            raise invalid(f"{mode.name} needs a format and fields")
        if format_ is not None:
            try:
                check_fields(fields, format_.widths)
            except ValueError as error:
                raise invalid(str(error)) from None
            format_.users.add((self.kind, self.number))
        self.mode, self.count, self.format, self.fields = mode, count, format_, tuple(fields)
        self.entries = [EvEntry()] * count if mode is EvMode.EXPLICIT else []
        self.denied = set()
        self.state = ProfileState.OFFLINE

    def set_entries(self, first: int, entries: Sequence[EvEntry]) -> None:
        """Set entries of an EXPLICIT profile. Raise EINVAL in another mode, E2BIG for too many entries."""
        self.require(ProfileState.OFFLINE)
        if self.mode is not EvMode.EXPLICIT:
            raise invalid(f"the entries of {self.mode.name} are not set one by one")
        if first < 0 or first + len(entries) > self.count:
            raise ProfileError(
                ProfileErrno.E2BIG, f"{first + len(entries)} entries are more than {self.count}"
            )
        bits = sum(field.bits for field in self.fields)
        if any(entry.ev >> bits for entry in entries):
            raise invalid(f"an EV has more than the {bits} bits that the fields take")
        self.entries[first : first + len(entries)] = entries

    def generate(self, ports: Iterable[int]) -> None:
        """Make the entries of a GENERATED profile for ports, counted from 1."""
        self.require(ProfileState.OFFLINE)
        if self.mode is not EvMode.GENERATED:
            raise invalid(f"{self.mode.name} does not generate EVs")
        evs = [ev for ev, _ in zip(generate(self.fields), range(self.count), strict=False)]
        self.entries = [EvEntry(ev, port) for port in ports for ev in evs]

    def put_online(self, min_active: int = 0, event_mask: EvStates = NO_EVENTS) -> None:
        """Change the state to ONLINE.

        Raise EINVAL if an entry has no EV, or if a port has fewer EVs than `min_active`.
        """
        self.require(ProfileState.OFFLINE)
        if not 0 <= min_active <= self.count:
            raise invalid(f"ev_min_active is {min_active}, with {self.count} EVs")
        if event_mask & ~EVENT_STATES:
            raise invalid("there are events for GOOD and ASSUMED_BAD only")
        if not all(entry.populated for entry in self.entries):
            raise invalid("not all entries are populated")
        if self.mode is EvMode.GENERATED and not self.entries:
            raise invalid("no EVs were generated")
        self.min_active, self.event_mask = min_active, event_mask
        self.go_online()

    def reset(self) -> None:
        """Go back from OFFLINE to INIT. Remove all entries, and stop using the profile's EV format."""
        super().reset()
        if self.format is not None:
            self.format.users.discard((self.kind, self.number))
            self.format = None
        self.entries, self.denied = [], set()
        self._events.clear()
        self._dropped = 0

    # For profiles in use

    def recipe(self) -> EvRecipe:
        """Return how the EVs of a port are made. A queue pair gets its paths from this recipe."""
        self.require(ProfileState.ONLINE)
        if self.mode is EvMode.AUTO or self.format is None:
            return EvRecipe(EvMode.AUTO, count=self.count)
        listed = tuple(self.entries)
        return EvRecipe(EvMode.EXPLICIT, entries=listed, fields=self.fields, widths=self.format.widths)

    def learn(self, entries: Iterable[EvEntry]) -> None:
        """Add the EVs that a queue pair of an AUTO profile has got."""
        known = set(self.entries)
        self.entries += [entry for entry in entries if entry not in known]

    def set_states(self, wanted: Sequence[tuple[EvEntry, EvStates]]) -> Batch:
        """Deny and allow EVs, also in running queue pairs. The first entry that fails ends the batch."""
        self.require(ProfileState.OFFLINE, ProfileState.ONLINE)
        known = set(self.entries)
        for done, (entry, state) in enumerate(wanted):
            if state not in SET_STATES:
                return Batch(done, invalid(f"a controller sets GOOD or DENIED, not {state!r}"))
            if entry not in known:
                missing = ProfileError(ProfileErrno.ENOENT, f"EV {entry.ev:#x} on port {entry.port}")
                return Batch(done, missing)
            if (state is EvStates.DENIED) != (entry in self.denied):
                (self.denied.add if state is EvStates.DENIED else self.denied.discard)(entry)
                if self.state is ProfileState.ONLINE:
                    self._apply(self, entry, state)
        return Batch(len(wanted))

    def replace(self, old: EvEntry, new: EvEntry, *, all_copies: bool = False) -> int:
        """Replace an EV, or all its copies, by another one; return the number of replaced copies.

        The new EV is GOOD. If no copy of the old EV is left, running queue pairs stop using it. Only queue
        pairs that connect later use the new EV. Raise ENOENT if the old EV is not in the profile, EINVAL if
        the new EV is not valid.
        """
        self.require(ProfileState.OFFLINE, ProfileState.ONLINE)
        if self.mode is not EvMode.EXPLICIT:
            raise invalid(f"the entries of {self.mode.name} are not replaced")
        if not new.populated or new.ev >> sum(field.bits for field in self.fields):
            raise invalid(f"{new} is no EV of this profile")
        places = [at for at, entry in enumerate(self.entries) if entry == old]
        if not places or not old.populated:
            raise ProfileError(ProfileErrno.ENOENT, f"EV {old.ev:#x} on port {old.port}")
        places = places if all_copies else places[:1]
        for at in places:
            self.entries[at] = replace(new)
        if self.state is ProfileState.ONLINE and old not in self.entries:
            self._apply(self, old, EvStates.DENIED)
        if old not in self.entries:
            self.denied.discard(old)
        return len(places)

    # Events for the controller

    def note(self, entry: EvEntry, state: EvStates) -> None:
        """Store an event if the event mask has the EV's new state. Drop the event if the list is full."""
        if not state & self.event_mask:
            return
        if len(self._events) >= EVENTS_KEPT:
            self._dropped += 1
            return
        self._events.append(EvEvent(self.number, entry, state, self._dropped))
        self._dropped = 0

    def next_event(self) -> EvEvent | None:
        """Remove and return the oldest event; None if there is none."""
        return self._events.popleft() if self._events else None
