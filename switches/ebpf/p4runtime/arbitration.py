"""Who may write: client arbitration (P4Runtime specification, section 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError, number

ElectionId = tuple[int, int]  # high, low


NOBODY: ElectionId = (-1, 0)  # of a client without an election id, which never wins


def election_id(message: p4r.Uint128) -> ElectionId:
    """Return an election id that compares like the 128-bit number."""
    return message.high, message.low


@dataclass(eq=False)
class Client:
    """A client's stream. `send` queues a message, `waiting` returns the number of queued messages."""

    send: Callable[[p4r.StreamMessageResponse], None]
    waiting: Callable[[], int] = lambda: 0
    role: str = ""
    election: ElectionId = NOBODY
    member: bool = False


@dataclass
class _Role:
    clients: list[Client] = field(default_factory=list)
    highest: ElectionId = NOBODY

    @property
    def primary(self) -> Client | None:
        """The client whose id is the highest ever seen in this role, while it is connected."""
        if self.highest == NOBODY:
            return None
        return next((c for c in self.clients if c.election == self.highest), None)


class Arbiter:
    """The elections of one device, one per role.

    Roles have no configuration here, so a role of any name has full access, as the specification has it
    (section 5.4). A named role ends with its last client, and its highest election id with it.
    """

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._roles: dict[str, _Role] = {}

    def update(self, client: Client, message: p4r.MasterArbitrationUpdate) -> None:
        """Handle an arbitration message and notify every client that it concerns.

        Raise P4RuntimeError INVALID_ARGUMENT for an election id that another client of the role holds.
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
        """Remove a client whose stream has ended; the others are notified if it was the primary."""
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
        """Return the primary of each role that has one."""
        return [p for role in self._roles.values() if (p := role.primary) is not None]

    def check(self, role: str, message: p4r.Uint128) -> None:
        """Raise P4RuntimeError unless this is the election id of the role's primary.

        NOT_FOUND for a role that nobody has taken part in, PERMISSION_DENIED otherwise.
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
        # The highest id seen, so that a backup knows which id it has to exceed.
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
