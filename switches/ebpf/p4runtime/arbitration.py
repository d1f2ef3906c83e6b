"""Client arbitration: the election of the client that may write (P4Runtime specification, section 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError, number

ElectionId = tuple[int, int]  # (high 64 bits, low 64 bits)


MESSAGES_WAITING = 1024
"""Maximum number of messages that wait for a client. Further ones are dropped, except arbitration updates."""

NOBODY: ElectionId = (-1, 0)  # for a client without an election id: this client is never primary


def election_id(message: p4r.Uint128) -> ElectionId:
    """Convert an election id to a tuple. Tuples compare in the same order as the 128-bit numbers."""
    return message.high, message.low


@dataclass(eq=False)
class Client:
    """A client's stream. `send` queues a message, `waiting` returns the number of queued messages."""

    send: Callable[[p4r.StreamMessageResponse], None]
    waiting: Callable[[], int] = lambda: 0
    role: str = ""
    election: ElectionId = NOBODY
    member: bool = False

    def offer(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message, but drop it if MESSAGES_WAITING messages wait already."""
        if self.waiting() < MESSAGES_WAITING:
            self.send(message)


@dataclass
class _Role:
    clients: list[Client] = field(default_factory=list)
    highest: ElectionId = NOBODY

    @property
    def primary(self) -> Client | None:
        """The client with the highest election id that this role has seen; None if this client has left."""
        if self.highest == NOBODY:
            return None
        return next((c for c in self.clients if c.election == self.highest), None)


class Arbiter:
    """The elections of one device, one per role.

    This target has no role configurations, so every role has full access (section 5.4). When the last client
    of a named role leaves, the role is removed together with its highest election id.
    """

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._roles: dict[str, _Role] = {}

    def update(self, client: Client, message: p4r.MasterArbitrationUpdate) -> None:
        """Handle an arbitration message. Notify all clients of the role if the primary changes.

        Raise P4RuntimeError INVALID_ARGUMENT if another client of the role has the same election id.
        """
        if message.role.HasField("config"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "no scheme for role configurations was agreed on")
        name = message.role.name
        if client.member and name != client.role:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, "a client cannot change its role")
        role = self._roles.setdefault(name, _Role())
        wanted = election_id(message.election_id) if message.HasField("election_id") else NOBODY
        if wanted != NOBODY and any(c.election == wanted for c in role.clients if c is not client):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "another client has this election id")
        before = role.primary
        if not client.member:
            client.member, client.role = True, name
            role.clients.append(client)
        client.election = wanted
        role.highest = max(role.highest, wanted)
        if role.primary is before:
            self._notify(role, client)
        else:
            for c in role.clients:
                self._notify(role, c)

    def leave(self, client: Client) -> None:
        """Remove a client whose stream has ended. If it was the primary, notify the role's other clients."""
        if not client.member:
            return
        role = self._roles[client.role]
        was_primary = role.primary is client
        role.clients.remove(client)
        client.member = False
        if client.role and not role.clients:
            del self._roles[client.role]
        if was_primary:
            for c in role.clients:
                self._notify(role, c)

    def primaries(self) -> list[Client]:
        """Return the primaries of all roles. Some roles may have no primary."""
        return [p for role in self._roles.values() if (p := role.primary) is not None]

    def check(self, role: str, message: p4r.Uint128) -> None:
        """Raise P4RuntimeError if a message's election id is not the id of the role's primary.

        The code is NOT_FOUND if the role has no clients, else PERMISSION_DENIED.
        """
        if role and role not in self._roles:
            raise P4RuntimeError(Code.NOT_FOUND, f"no role {role}")
        primary = self._roles[role].primary if role in self._roles else None
        if primary is None or election_id(message) != primary.election:
            raise P4RuntimeError(Code.PERMISSION_DENIED, "Not primary")

    def _notify(self, role: _Role, client: Client) -> None:
        response = p4r.StreamMessageResponse()
        update = response.arbitration
        update.device_id = self.device_id
        if client.role:
            update.role.name = client.role
        # Report the highest id that the role has seen: a backup needs a higher id to become primary.
        if role.highest != NOBODY:
            update.election_id.high, update.election_id.low = role.highest
        if role.primary is client:
            update.status.code = number(Code.OK)
            update.status.message = "Is primary"
        elif role.primary is not None:
            update.status.code = number(Code.ALREADY_EXISTS)
            update.status.message = "Is backup"
        else:
            update.status.code = number(Code.NOT_FOUND)
            update.status.message = "There is no primary"
        client.send(response)
