"""What all profiles have in common: states, what each transition requires, and errors by name [API].

    INIT -> OFFLINE -> ONLINE -> OFFLINE -> INIT

A profile gets its attributes on the way to OFFLINE and may be used while it is ONLINE. It leaves ONLINE only
when nothing uses it any more.
"""

from __future__ import annotations

from enum import Enum

MOST_PROFILES = 256
"""Of each kind on one NIC."""


class ProfileState(Enum):
    """The states of a profile [API]."""

    INIT = "init"
    OFFLINE = "offline"
    ONLINE = "online"


class ProfileErrno(Enum):
    """Why an operation on a profile failed, by the names of the API."""

    E2BIG = "too many"
    EINVAL = "not valid"
    ENOENT = "does not exist"
    EBUSY = "in use"


class ProfileError(ValueError):
    """An operation on a profile failed; `errno` says why."""

    def __init__(self, errno: ProfileErrno, detail: str) -> None:
        super().__init__(f"{errno.name}: {detail}")
        self.errno = errno


def invalid(detail: str) -> ProfileError:
    """Return the error for a wrong value or a wrong state."""
    return ProfileError(ProfileErrno.EINVAL, detail)


class Profile:
    """A profile of any kind: its state and who uses it."""

    kind = "profile"

    def __init__(self, number: int) -> None:
        self.number = number
        """Its id, 64 bits."""
        self.state = ProfileState.INIT
        self.users: set[tuple[str, int]] = set()
        """What uses it: a kind and a number."""

    def require(self, *states: ProfileState) -> None:
        """Raise EINVAL in any other state."""
        if self.state not in states:
            wanted = " or ".join(state.name for state in states)
            raise invalid(f"{self.kind} profile {self.number:#x} is {self.state.name}, not {wanted}")

    def go_online(self) -> None:
        """Go from OFFLINE to ONLINE. Raise EINVAL in any other state."""
        self.require(ProfileState.OFFLINE)
        self.state = ProfileState.ONLINE

    def go_offline(self) -> None:
        """Go back from ONLINE to OFFLINE. Raise EBUSY while something uses it."""
        self.require(ProfileState.ONLINE)
        if self.users:
            users = ", ".join(sorted(f"{kind} {number:#x}" for kind, number in self.users))
            raise ProfileError(ProfileErrno.EBUSY, f"{self.kind} profile {self.number:#x} is used by {users}")
        self.state = ProfileState.OFFLINE

    def reset(self) -> None:
        """Go back from OFFLINE to INIT."""
        self.require(ProfileState.OFFLINE)
        self.state = ProfileState.INIT
