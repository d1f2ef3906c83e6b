"""Requests by which a controller reads and changes the profiles of a NIC, in JSON's types.

An EV is written `VALUE@PORT`, such as `0x28000@3`, with ports counted from 1 as in the API. An answer reports
each entry separately. Errors have the API's names (E2BIG, EINVAL, ENOENT, EBUSY).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mrclab.hosts.mrc.evs.ev_modes import EvEntry, EvFormat, EvMode
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import (
    MOST_EVS,
    NSCC,
    PARAMETERS,
    EvProfile,
    EvStates,
    Profile,
    ProfileErrno,
    ProfileError,
    ProfileState,
    invalid,
)

DEFAULT_ID = 1
"""The id of the profiles that a NIC's queue pairs use by default."""
STATES = {"GOOD": EvStates.GOOD, "DENIED": EvStates.DENIED}
Request = Mapping[str, Any]
_Kind = TypeVar("_Kind", bound=Profile)


def entry_of(text: object) -> EvEntry:
    """Return the entry that a text names. Raise EINVAL if the text is wrong."""
    try:
        value, _, port = str(text).partition("@")
        return EvEntry(int(value, 0), int(port))
    except ValueError:
        raise invalid(
            f"an EV is VALUE@PORT, such as 0x28000@3, with ports from 1, not {text!r:.40}"
        ) from None


def text_of(entry: EvEntry) -> str:
    """Return the text of an entry, in the form that `entry_of` reads."""
    return f"{entry.ev:#x}@{entry.port}"


def default_profiles(profiles: NicProfiles) -> None:
    """Create the profiles that a NIC has at the start, from its options: all with id 1 and ONLINE."""
    config = profiles.config
    mode = EvFormat.SRV6 if config.ev_mode == "srv6" else EvFormat.STEV
    layout = profiles.create_format(DEFAULT_ID)
    layout.configure(mode, (32,) * (mode.value // 32))
    layout.go_online()
    evs = profiles.create_evs(DEFAULT_ID)
    most = max(config.active_evs(), config.ev_min_active)
    evs.configure(EvMode.AUTO, min(most, MOST_EVS), layout)
    evs.put_online(config.ev_min_active, EvStates.GOOD | EvStates.ASSUMED_BAD)
    if config.congestion in ("fixed", "nscc"):
        cc = profiles.create_cc(DEFAULT_ID)
        cc.configure(NSCC if config.congestion == "nscc" else None, base=config.nscc)
        cc.go_online()


class ProfileRequests:
    """The requests about one NIC's profiles.

    show      -> all profiles; with `evs` the state of every EV
    set       deny or allow EVs (`state`): the EVs of `ports`, or the list `evs` -> a result for each EV
    replace   replace the EV `old` (`all`: all its copies) by `new` -> the number of replaced copies
    events    remove the waiting events -> each event, and the number of events dropped before it
    create    a CC profile `id` with an `algorithm` (or none) and `parameters`, or an AUTO EV profile
              with `count`, `min_active`
    remove    take a profile without users back to INIT, and remove it
    """

    def __init__(self, profiles: NicProfiles, host: str, now: Callable[[], int]) -> None:
        self._profiles = profiles
        self._host = host
        self._now = now
        self.operations: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "show": self._show,
            "set": self._set,
            "replace": self._replace,
            "events": self._events,
            "create": self._create,
            "remove": self._remove,
        }

    def carry_out(self, request: object) -> dict[str, Any]:
        """Return the answer to a request. If the request failed, the answer has an `error` and an `errno`."""
        try:
            if not isinstance(request, Mapping) or request.get("do") not in self.operations:
                raise invalid(f"not a request: {str(request)[:60]!r}")
            self._profiles.set_time(self._now())
            return self.operations[str(request["do"])](request)
        except ProfileError as error:
            return _failure(error)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return _failure(invalid(f"a bad request: {str(error)[:80]!r}"))

    def _show(self, request: Request) -> dict[str, Any]:
        profiles = self._profiles
        return {
            "host": self._host,
            "formats": [
                {**_common(p), "mode": p.mode.name, "widths": list(p.widths)}
                for p in profiles.formats.values()
            ],
            "evs": [self._ev_profile(p, bool(request.get("evs"))) for p in profiles.evs.values()],
            "ccs": [
                {
                    **_common(p),
                    "algorithm": p.algorithm,
                    "parameters": {
                        name: getattr(p.nscc, ours) for name, (ours, _) in PARAMETERS.items() if p.algorithm
                    },
                }
                for p in profiles.ccs.values()
            ],
        }

    def _ev_profile(self, profile: EvProfile, each: bool) -> dict[str, Any]:
        found = {
            **_common(profile),
            "mode": profile.mode.name,
            "count": profile.count,
            "min_active": profile.min_active,
            "event_mask": [state.name for state in EvStates if state & profile.event_mask],
        }
        if profile.state is ProfileState.ONLINE:
            states = self._profiles.states(profile.number)
            found["states"] = _count(state.name for state in states.values())
            if each:
                found["evs"] = {text_of(entry): state.name for entry, state in states.items()}
        return found

    def _set(self, request: Request) -> dict[str, Any]:
        if request.get("state") not in STATES:
            raise invalid(f"a controller sets GOOD or DENIED, not {str(request.get('state'))[:20]!r}")
        state = STATES[request["state"]]
        profile = _find(self._profiles.evs, request.get("profile", DEFAULT_ID))
        ports, named = request.get("ports", ()), request.get("evs", ())
        if bool(ports) == bool(named):
            raise invalid("give ports, or EVs")
        if ports:
            wanted = [entry for entry in dict.fromkeys(profile.entries) if entry.port in set(ports)]
            if not wanted:
                raise ProfileError(ProfileErrno.ENOENT, f"no EV on port {', '.join(map(str, ports))}")
        else:
            wanted = [entry_of(text) for text in _list(named)]
        batch = profile.set_states([(entry, state) for entry in wanted])
        results: dict[str, str] = {}
        for number, entry in enumerate(wanted):
            failed = batch.error if number == batch.done else None
            after = "not tried" if number > batch.done else "ok"
            results[text_of(entry)] = after if failed is None else str(failed)
        return {"host": self._host, "done": batch.done, "results": results}

    def _replace(self, request: Request) -> dict[str, Any]:
        profile = _find(self._profiles.evs, request.get("profile", DEFAULT_ID))
        old, new = entry_of(request["old"]), entry_of(request["new"])
        return {
            "host": self._host,
            "replaced": profile.replace(old, new, all_copies=bool(request.get("all"))),
        }

    def _events(self, request: Request) -> dict[str, Any]:
        profile = _find(self._profiles.evs, request.get("profile", DEFAULT_ID))
        found = []
        while (event := profile.next_event()) is not None:
            found.append({"ev": text_of(event.entry), "state": event.state.name, "dropped": event.dropped})
        return {"host": self._host, "events": found}

    def _create(self, request: Request) -> dict[str, Any]:
        number, kind = int(request["id"]), request.get("kind")
        if kind == "cc":
            algorithm = request.get("algorithm", NSCC)
            cc = self._profiles.create_cc(number)
            try:
                cc.configure(algorithm, request.get("parameters"), self._profiles.config.nscc)
                cc.go_online()
            except (ValueError, TypeError):
                self._profiles.destroy(cc)
                raise
        elif kind == "ev":
            evs = self._profiles.create_evs(number)
            try:
                evs.configure(EvMode.AUTO, int(request["count"]))
                evs.put_online(int(request.get("min_active", 0)))
            except (ValueError, TypeError, KeyError):
                if evs.state is ProfileState.OFFLINE:
                    evs.reset()
                self._profiles.destroy(evs)
                raise
        else:
            raise invalid(f"a profile of kind ev or cc is created so, not {str(kind)[:20]!r}")
        return {"host": self._host, "id": number}

    def _remove(self, request: Request) -> dict[str, Any]:
        profiles = self._profiles
        tables: dict[str, Mapping[int, Profile]] = {
            "format": profiles.formats,
            "ev": profiles.evs,
            "cc": profiles.ccs,
        }
        kind = request.get("kind")
        if kind not in tables:
            raise invalid(f"a profile is of kind format, ev or cc, not {str(kind)[:20]!r}")
        profile = _find(tables[str(kind)], request["id"])
        if profile.state is ProfileState.ONLINE:
            profile.go_offline()
        if profile.state is ProfileState.OFFLINE:
            profile.reset()
        profiles.destroy(profile)
        return {"host": self._host, "id": profile.number}


def _find(table: Mapping[int, _Kind], number: object) -> _Kind:
    profile = table.get(number) if isinstance(number, int) else None
    if profile is None:
        raise ProfileError(ProfileErrno.ENOENT, f"no profile {str(number)[:24]!r}")
    return profile


def _common(profile: Profile) -> dict[str, Any]:
    return {
        "id": profile.number,
        "state": profile.state.name,
        "queue_pairs": sum(kind == "QP" for kind, _ in profile.users),
    }


def _count(names: Iterable[str | None]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[str(name)] = found.get(str(name), 0) + 1
    return found


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple) or len(value) > MOST_EVS:
        raise invalid(f"a list of up to {MOST_EVS} EVs, not {str(value)[:40]!r}")
    return value


def _failure(error: ProfileError) -> dict[str, Any]:
    return {"error": str(error), "errno": error.errno.name}
