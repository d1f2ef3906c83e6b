"""EV formats and congestion control profiles, which a controller creates and changes.

A controller sets attributes one by one. At each change of state, all needed attributes must be set. The
NIC's own profiles (`mrclab.hosts.mrc.profiles`) need all attributes at once. So a draft stores the
attributes, and the NIC has a profile only while the profile is ONLINE.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mrclab.hosts.mrc.evs.ev_modes import EvFormat
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import (
    MOST_PROFILES,
    CcProfile,
    EvFormatProfile,
    ProfileErrno,
    ProfileError,
)
from mrclab.hosts.mrc.profiles.profile import NSCC as NSCC_NAME
from mrclab.hosts.service.control import abi
from mrclab.hosts.service.control.abi import CcMask, FormatMask, FormatMode, State
from mrclab.hosts.service.shared_memory import ProgramMemory

ERRNOS: Final[Mapping[ProfileErrno, int]] = {
    ProfileErrno.E2BIG: errno.E2BIG,
    ProfileErrno.EINVAL: errno.EINVAL,
    ProfileErrno.ENOENT: errno.ENOENT,
    ProfileErrno.EBUSY: errno.EBUSY,
}
MOST_FIELDS = 64
MOST_NAME_BYTES = 64
FORMAT_BITS: Final[Mapping[FormatMode, int]] = {
    FormatMode.STEV: EvFormat.STEV.value,
    FormatMode.SRV6: EvFormat.SRV6_SRH.value,
    FormatMode.UDP: EvFormat.UDP.value,
}
NSCC_NAMES = (
    *("disable_qa", "adjust_bytes_threshold", "adjust_period_threshold", "base_rtt"),
    *("eta", "fi", "fi_scale", "gamma", "max_md_jump"),
    *("max_cwnd", "qa_gate", "qa_threshold", "target_delay"),
)
"""The parameters of NSCC, in the order in which the structure of `mrc_ctl.h` has them."""


class ControlError(OSError):
    """The failure of a request, with the ``errno`` for the controller."""

    @classmethod
    def of(cls, error: ProfileError) -> ControlError:
        """Convert an error of the NIC's profile into the error for the controller."""
        return cls(ERRNOS[error.errno], str(error))


def invalid(detail: str) -> ControlError:
    """Return the error EINVAL with a reason."""
    return ControlError(errno.EINVAL, detail)


def check_step(now: State, new: int) -> State:
    """Return the state ``new``. Raise EINVAL if no single transition leads from ``now`` to ``new``."""
    if new not in tuple(State) or abs(new - now) > 1:
        raise invalid(f"no step leads from {now.name} to state {new}")
    return State(new)


def check_current(now: State, claimed: int) -> None:
    """Raise EINVAL if the present state is not the state that the controller expects."""
    if claimed != now:
        raise invalid(f"the profile is {now.name}")


def room(drafts: Mapping[int, object], number: int) -> None:
    """Raise E2BIG if there are too many profiles. Raise EINVAL for number 0, the profile of the NIC."""
    if number == 0:
        raise invalid("profile 0 is the NIC's own")
    if number not in drafts and len(drafts) >= MOST_PROFILES:
        raise ControlError(errno.E2BIG, f"there are {MOST_PROFILES} profiles already")


@dataclass(frozen=True, slots=True)
class FormatDraft:
    """Attributes of an EV format."""

    state: State = State.INIT
    mode: FormatMode | None = None
    widths: tuple[int, ...] = ()


class Formats:
    """The EV formats of a NIC."""

    def __init__(self, profiles: NicProfiles) -> None:
        self._profiles = profiles
        self._drafts: dict[int, FormatDraft] = {}

    def online(self, number: int) -> EvFormatProfile:
        """Return a format that is ONLINE. Raise EINVAL if it is not ONLINE."""
        found = self._profiles.formats.get(number)
        if found is None:
            raise invalid(f"EV format {number:#x} is not online")
        return found

    def modify(self, memory: ProgramMemory, number: int, address: int, mask: int) -> None:
        """Change attributes, then the state. Raise ControlError if a change is not valid."""
        room(self._drafts, number)
        wanted = FormatMask(mask)
        new, current, mode, op, fields, count, _ = abi.FORMAT.unpack(memory.read(address, abi.FORMAT.size))
        draft = before = self._drafts.get(number, FormatDraft())
        if wanted & FormatMask.CURRENT:
            check_current(before.state, current)
        if wanted & (FormatMask.MODE | FormatMask.OP) and before.state is State.ONLINE:
            raise invalid("a format that is ONLINE stays as it is")
        if wanted & FormatMask.MODE:
            if mode not in tuple(FormatMode):
                raise invalid(f"no format mode {mode}")
            draft = replace(draft, mode=FormatMode(mode))
        if wanted & FormatMask.OP:
            if op != abi.MODIFY:
                raise invalid("a change modifies")
            if not 1 <= count <= MOST_FIELDS:
                raise ControlError(errno.E2BIG, f"a format has 1 to {MOST_FIELDS} fields")
            draft = replace(draft, widths=tuple(memory.read(fields, count)))
        if draft.mode is not None and sum(draft.widths) > FORMAT_BITS[draft.mode]:
            raise ControlError(errno.E2BIG, f"{draft.mode.name} has no room for {sum(draft.widths)} bits")
        if wanted & FormatMask.STATE:
            draft = self._step(number, draft, check_step(before.state, new))
        self._drafts[number] = draft

    def _step(self, number: int, draft: FormatDraft, new: State) -> FormatDraft:
        if new is State.OFFLINE and draft.mode is None:
            raise invalid("an OFFLINE format has a mode")
        if new is State.ONLINE and draft.state is not new:
            self._make(number, draft)
        elif draft.state is State.ONLINE and new is not draft.state:
            core = self._profiles.formats[number]
            try:
                core.go_offline()
            except ProfileError as error:
                raise ControlError.of(error) from None
            core.reset()
            self._profiles.destroy(core)
        return FormatDraft() if new is State.INIT else replace(draft, state=new)

    def _make(self, number: int, draft: FormatDraft) -> None:
        modes = {FormatMode.STEV: EvFormat.STEV, FormatMode.SRV6: EvFormat.SRV6, FormatMode.UDP: EvFormat.UDP}
        assert draft.mode is not None
        mode = modes[draft.mode]
        if mode is EvFormat.SRV6 and sum(draft.widths) > mode.value:
            mode = EvFormat.SRV6_SRH
        core = self._profiles.create_format(number)
        try:
            core.configure(mode, draft.widths)
        except ProfileError as error:
            self._profiles.destroy(core)
            raise ControlError.of(error) from None
        core.go_online()

    def query(self, memory: ProgramMemory, number: int, address: int, mask: int) -> None:
        """Write attributes into the controller's structure.

        If the structure's array is too short, write the needed count and raise E2BIG.
        """
        values = list(abi.FORMAT.unpack(memory.read(address, abi.FORMAT.size)))
        draft = self._drafts.get(number, FormatDraft())
        values[1], values[2] = draft.state, draft.mode or 0
        short = False
        if FormatMask(mask) & FormatMask.OP:
            if values[3] != abi.QUERY:
                raise invalid("a query queries")
            short = values[5] < len(draft.widths)
            if not short:
                memory.write(values[4], bytes(draft.widths))
            values[5] = len(draft.widths)
        values[6] = abi.VENDOR
        memory.write(address, abi.FORMAT.pack(*values))
        if short:
            raise ControlError(errno.E2BIG, "the array is too short")


@dataclass(frozen=True, slots=True)
class CcDraft:
    """Attributes of a congestion control profile."""

    state: State = State.INIT
    chosen: bool = False
    """True if the controller has set the algorithm. Algorithm None means: no congestion control."""
    algorithm: str | None = None
    config: bytes | None = None
    """The bytes of the structure with the parameters."""


class CcProfiles:
    """The congestion control profiles of a NIC."""

    def __init__(self, profiles: NicProfiles) -> None:
        self._profiles = profiles
        self._drafts: dict[int, CcDraft] = {}

    def modify(self, memory: ProgramMemory, number: int, address: int, mask: int) -> None:
        """Change attributes, then the state. Raise ControlError if a change is not valid."""
        room(self._drafts, number)
        wanted = CcMask(mask)
        new, current, algorithm, config, _ = abi.CC.unpack(memory.read(address, abi.CC.size))
        draft = before = self._drafts.get(number, CcDraft())
        if wanted & CcMask.CURRENT:
            check_current(before.state, current)
        if wanted & (CcMask.ALGORITHM | CcMask.CONFIG) and before.state is State.ONLINE:
            raise invalid("a profile that is ONLINE stays as it is")
        if wanted & CcMask.ALGORITHM:
            name = _name(memory, algorithm) if algorithm else None
            if name not in (None, NSCC_NAME):
                raise invalid(f"no algorithm is called {name!r}")
            draft = replace(draft, chosen=True, algorithm=name)
        if wanted & CcMask.CONFIG:
            draft = replace(draft, config=memory.read(config, abi.NSCC.size))
        if wanted & CcMask.STATE:
            draft = self._step(number, draft, check_step(before.state, new))
        self._drafts[number] = draft

    def _step(self, number: int, draft: CcDraft, new: State) -> CcDraft:
        if new is State.OFFLINE and not draft.chosen:
            raise invalid("an OFFLINE profile has an algorithm")
        if new is State.ONLINE and draft.state is not new:
            self._make(number, draft)
        elif draft.state is State.ONLINE and new is not draft.state:
            core = self._profiles.ccs[number]
            try:
                core.go_offline()
            except ProfileError as error:
                raise ControlError.of(error) from None
            core.reset()
            self._profiles.destroy(core)
        return CcDraft() if new is State.INIT else replace(draft, state=new)

    def _make(self, number: int, draft: CcDraft) -> None:
        if draft.algorithm is not None and draft.config is None:
            raise invalid("an ONLINE profile has a configuration")
        parameters = None
        if draft.algorithm is not None and draft.config is not None:
            given = dict(zip(NSCC_NAMES, abi.NSCC.unpack(draft.config), strict=True))
            if not given["base_rtt"]:
                del given["base_rtt"]  # the NIC measures this RTT
            parameters = given
        core: CcProfile = self._profiles.create_cc(number)
        try:
            core.configure(draft.algorithm, parameters)
        except ProfileError as error:
            self._profiles.destroy(core)
            raise ControlError.of(error) from None
        core.go_online()

    def query(self, memory: ProgramMemory, number: int, address: int, mask: int) -> bool:
        """Write a profile's attributes into the program's structure at ``address``, but not the name.

        Return True if the profile's algorithm is NSCC.
        """
        values = list(abi.CC.unpack(memory.read(address, abi.CC.size)))
        draft = self._drafts.get(number, CcDraft())
        if CcMask(mask) & CcMask.CONFIG and values[3]:
            memory.write(values[3], draft.config or bytes(abi.NSCC.size))
        values[1], values[4] = draft.state, abi.VENDOR
        memory.write(address, abi.CC.pack(*values))
        return draft.algorithm is not None


def _name(memory: ProgramMemory, address: int) -> str:
    found = bytearray()
    while len(found) < MOST_NAME_BYTES and (byte := memory.read(address + len(found), 1)) != b"\0":
        found += byte
    return found.decode("ascii", "replace")
