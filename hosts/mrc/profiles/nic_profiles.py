"""The profiles of one NIC, by id, and the queue pairs of each profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.connection import QpAttributes
from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.events import EvRestored, EvRetired, RetireReason
from mrclab.hosts.mrc.evs.ev_modes import EvEntry, EvFormat, EvMode, make_paths
from mrclab.hosts.mrc.profiles.profile import (
    MOST_PROFILES,
    Batch,
    CcProfile,
    EvFormatProfile,
    EvProfile,
    EvStates,
    Profile,
    ProfileErrno,
    ProfileError,
    ProfileState,
    invalid,
)
from mrclab.hosts.rdma.events import Event, EvState
from mrclab.hosts.rdma.paths import RemotePaths

_QP = "QP"
_Kind = TypeVar("_Kind", bound=Profile)


class NicProfiles:
    """EV formats, EVs and congestion control of one NIC, for controllers and for its queue pairs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.formats: dict[int, EvFormatProfile] = {}
        self.evs: dict[int, EvProfile] = {}
        self.ccs: dict[int, CcProfile] = {}
        self._of_qp: dict[int, tuple[EvProfile | None, CcProfile | None]] = {}
        self._entries: dict[int, dict[int, EvEntry]] = {}
        """For each queue pair: a mapping from an EV's value in the endpoint to the profile's entry."""
        self._values: dict[int, dict[EvEntry, int]] = {}
        """For each queue pair: a mapping from the profile's entry to the EV's value in the endpoint."""

    @property
    def config(self) -> MrcConfig:
        """The options of the NIC."""
        return self._endpoint.config

    def set_time(self, now_ns: int) -> None:
        """Set the time of the next changes. Without this call, the time of the NIC's last frame is used."""
        self._endpoint.now_ns = max(self._endpoint.now_ns, now_ns)

    # Creating and removing profiles

    def create_format(self, number: int) -> EvFormatProfile:
        """Create an EV format. Raise E2BIG if there are too many formats, EINVAL if the id is taken."""
        return _add(self.formats, EvFormatProfile(number))

    def create_evs(self, number: int) -> EvProfile:
        """Create an EV profile. Raise the errors of `create_format`."""
        return _add(self.evs, EvProfile(number, self._apply))

    def create_cc(self, number: int) -> CcProfile:
        """Create a CC profile. Raise the errors of `create_format`."""
        return _add(self.ccs, CcProfile(number))

    def destroy(self, profile: Profile) -> None:
        """Remove a profile in state INIT. Raise EINVAL in another state."""
        profile.require(ProfileState.INIT)
        for table in (self.formats, self.evs, self.ccs):
            if table.get(profile.number) is profile:
                del table[profile.number]

    # Queue pairs that use profiles

    def connect(
        self,
        qpn: int,
        remote: QpAttributes,
        paths: RemotePaths,
        ev_profile: int | None = None,
        cc_profile: int | None = None,
    ) -> None:
        """Connect a queue pair with these profiles. If a profile is None, the NIC uses its own options.

        `paths` are the NIC's paths. An AUTO profile uses these paths; a profile of another mode makes its
        own EVs for the planes of `paths`. Raise ENOENT if a profile is not ONLINE, EINVAL if frames cannot
        carry the EVs.
        """
        evs = None if ev_profile is None else _online(self.evs, ev_profile)
        cc = None if cc_profile is None else _online(self.ccs, cc_profile)
        config = self._endpoint.config
        if evs is not None:
            config = replace(config, ev_min_active=evs.min_active)
            if evs.mode is not EvMode.AUTO:
                paths = self._made(evs, paths, config)
        if cc is not None:
            name = "fixed" if cc.algorithm is None else "nscc"
            config = replace(config, congestion=name, nscc=cc.nscc)
        self._endpoint.connect(qpn, remote, paths, config, ev_profile)
        self._of_qp[qpn] = evs, cc
        for profile in (evs, cc):
            if profile is not None:
                profile.users.add((_QP, qpn))
        if evs is not None:
            self._join(qpn, evs)

    def _made(self, evs: EvProfile, paths: RemotePaths, config: MrcConfig) -> RemotePaths:
        mode = EvFormat.STEV if evs.format is None else evs.format.mode
        if mode is EvFormat.SRV6_SRH:
            raise invalid("frames have no SRH")
        if (mode is EvFormat.SRV6) != (config.ev_mode == "srv6"):
            raise invalid(f"EVs of {mode.name} do not fit the option ev_mode {config.ev_mode}")
        recipe, rng = evs.recipe(), self._endpoint.rng
        rule = None if mode is EvFormat.SRV6 else lambda _ev: None
        planes = tuple(
            replace(plane, paths=made)
            for plane in paths.planes
            if (made := make_paths(recipe, plane.port, rng, rule))
        )
        try:
            return RemotePaths(planes)
        except ValueError as error:
            raise invalid(str(error)) from None

    def _join(self, qpn: int, evs: EvProfile) -> None:
        """Store the EV entries of a queue pair, and deny the EVs that the profile denies."""
        by_value = {}
        if evs.mode is not EvMode.AUTO and evs.format is not None:
            recipe = evs.recipe()
            carried = (lambda ev: ev) if evs.format.mode is EvFormat.SRV6 else recipe.value
            by_value = {(carried(entry.ev), entry.port): entry for entry in evs.entries}
        entries = self._entries[qpn] = {}
        for counters in self._endpoint.ev_counters(qpn):
            entry = by_value.get((counters.ev, counters.plane + 1), EvEntry(counters.ev, counters.plane + 1))
            entries[counters.ev] = entry
        self._values[qpn] = {entry: value for value, entry in entries.items()}
        if evs.mode is EvMode.AUTO:
            evs.learn(entries.values())
        self._set(qpn, evs.denied, EvStates.DENIED)

    def forget(self, qpn: int) -> None:
        """Remove a destroyed queue pair from its profiles."""
        for profile in self._of_qp.pop(qpn, ()):
            if profile is not None:
                profile.users.discard((_QP, qpn))
        self._entries.pop(qpn, None)
        self._values.pop(qpn, None)

    # The EVs of profiles

    def deny_again(self, qpn: int) -> None:
        """Deny the EVs of the profile's denylist again, after another request has allowed EVs."""
        evs, _ = self._of_qp.get(qpn, (None, None))
        if evs is not None:
            self._set(qpn, evs.denied, EvStates.DENIED)

    def _apply(self, evs: EvProfile, entry: EvEntry, state: EvStates) -> None:
        for _, qpn in evs.users:
            self._set(qpn, (entry,), state)

    def _set(self, qpn: int, entries: Iterable[EvEntry], state: EvStates) -> None:
        known = self._values[qpn]
        values = [known[entry] for entry in entries if entry in known]
        change = self._endpoint.deny if state is EvStates.DENIED else self._endpoint.allow
        change(values, self._endpoint.now_ns, qpn)

    def set_ports(self, number: int, ports: Iterable[int], state: EvStates) -> Batch:
        """Deny or allow all EVs of a profile on these ports, counted from 1."""
        evs = _online(self.evs, number)
        wanted = set(ports)
        return evs.set_states(
            [(entry, state) for entry in dict.fromkeys(evs.entries) if entry.port in wanted]
        )

    def states(self, number: int) -> Mapping[EvEntry, EvStates]:
        """Return the state of each EV of a profile: set by the controller, or else derived from losses.

        An EV is ASSUMED_BAD if at least one queue pair assumes it bad, and UNKNOWN if no queue pair uses it.
        """
        evs = _online(self.evs, number)
        found = dict.fromkeys(evs.entries, EvStates.UNKNOWN)
        for _, qpn in evs.users:
            for counters in self._endpoint.ev_counters(qpn):
                entry = self._entries[qpn][counters.ev]
                if counters.state is EvState.ASSUMED_BAD:
                    found[entry] = EvStates.ASSUMED_BAD
                elif found.get(entry) is EvStates.UNKNOWN:
                    found[entry] = EvStates.GOOD
        return found | dict.fromkeys(evs.denied, EvStates.DENIED)

    def observe(self, event: Event) -> None:
        """Pass an event to the profile of its queue pair, if an EV of the profile was retired or restored."""
        if isinstance(event, EvRetired | EvRestored) and event.qpn in self._of_qp:
            evs, _ = self._of_qp[event.qpn]
            entry = self._entries.get(event.qpn, {}).get(event.ev)
            if evs is None or entry is None:
                return
            if isinstance(event, EvRestored):
                evs.note(entry, EvStates.GOOD)
            elif event.reason is not RetireReason.DENIED:
                evs.note(entry, EvStates.ASSUMED_BAD)


def _add(table: dict[int, _Kind], profile: _Kind) -> _Kind:
    if profile.number in table:
        raise invalid(f"{profile.kind} profile {profile.number:#x} exists already")
    if len(table) >= MOST_PROFILES:
        raise ProfileError(ProfileErrno.E2BIG, f"there are {MOST_PROFILES} {profile.kind} profiles already")
    table[profile.number] = profile
    return profile


def _online(table: Mapping[int, _Kind], number: int) -> _Kind:
    profile = table.get(number)
    if profile is None or profile.state is not ProfileState.ONLINE:
        raise ProfileError(ProfileErrno.ENOENT, f"no profile {number:#x} is online")
    return profile
