"""Action profiles: members, groups of members, and groups that belong to one entry (one-shots).

A frame should get the same member as in BMv2, so this module numbers members as BMv2 does. Such a number is
called a handle. A new handle is the lowest free number. A member has one handle for each unit of its largest
weight in any group, and at least one handle. A member of weight n has n places in a group. The places of a
group are sorted by handle, and the hash of a frame selects a place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mrclab.switches.ebpf.plan import TO_GROUP, TO_MEMBER, ProfileLayout
from mrclab.switches.ebpf.runtime.entries import (
    Action,
    ExistsError,
    NotThereError,
    Reference,
    TableFullError,
    encode_action,
)
from mrclab.switches.ebpf.runtime.transaction import Handles, Transaction


class InUseError(Exception):
    """A member or group cannot be deleted because an entry or a group refers to it."""


@dataclass(frozen=True)
class Share:
    """A member's weight in a group, and its watch port: if `port` is down, the group omits the member.

    `watch` is this port in the form of the client's message: ("watch", number) or ("watch_port", bytes).
    """

    weight: int
    port: int | None = None
    watch: tuple[str, int | bytes] | None = None


@dataclass
class Member:
    """A member: its action, its index in the map, its handles, and the number of entries that refer to it."""

    action: Action
    place: int
    handles: list[int]
    groups: dict[int, int] = field(default_factory=dict)  # index in the map of groups -> weight in the group
    entries: int = 0


@dataclass
class Group:
    """A group. `members` has the `Share` of each member, by the member's id.

    In a one-shot, members have no id. Then the key is the member's position in `OneShot.own`.
    """

    place: int
    members: dict[int, Share]
    max_size: int = 0
    entries: int = 0


@dataclass
class OneShot(Group):
    """A group that belongs to one entry. `own` holds its members."""

    own: list[Member] = field(default_factory=list)


class ProfileState:
    """The contents of one action profile. `is_up` returns whether a port's link is up.

    A change updates this object and adds its map updates to a transaction. The methods raise ExistsError,
    NotThereError, InUseError and TableFullError.
    """

    def __init__(self, layout: ProfileLayout, is_up: Callable[[int], bool] = lambda port: True) -> None:
        self.layout = layout
        self.members: dict[int, Member] = {}
        self.groups: dict[int, Group] = {}
        self._by_place: dict[int, Group] = {}
        self._own = 0  # number of members of all one-shots
        self._is_up = is_up
        self._handles = Handles()
        self._places = Handles()
        self._group_places = Handles()
        self._watched: dict[int, dict[int, Group]] = {}  # watch port -> its groups, by index in the map

    # -- members -------------------------------------------------------------------------------------------

    def insert_member(self, member_id: int, action: Action, tx: Transaction) -> None:
        """Add a member."""
        if member_id in self.members:
            raise ExistsError
        if len(self.members) >= self.layout.size:
            raise TableFullError
        self.members[member_id] = self._new_member(action, tx)
        tx.on_undo(lambda: self.members.pop(member_id))

    def modify_member(self, member_id: int, action: Action, tx: Transaction) -> None:
        """Change the action of a member, for all groups and entries that use the member."""
        member = self._member(member_id)
        before = member.action
        member.action = action
        tx.on_undo(lambda: setattr(member, "action", before))
        self._write_member(member, tx)

    def delete_member(self, member_id: int, tx: Transaction) -> None:
        """Remove a member. Raise InUseError if a group or an entry uses it."""
        member = self._member(member_id)
        if member.groups or member.entries:
            raise InUseError
        del self.members[member_id]
        tx.on_undo(lambda: self.members.__setitem__(member_id, member))
        self._drop_member(member, tx)

    def _member(self, member_id: int) -> Member:
        if member_id not in self.members:
            raise NotThereError
        return self.members[member_id]

    def _new_member(self, action: Action, tx: Transaction) -> Member:
        member = Member(action, self._places.take(tx), [self._handles.take(tx)])
        self._write_member(member, tx)
        return member

    def _drop_member(self, member: Member, tx: Transaction) -> None:
        for handle in member.handles:
            self._handles.give(handle, tx)
        self._places.give(member.place, tx)

    def _write_member(self, member: Member, tx: Transaction) -> None:
        def current() -> bytes:
            return encode_action(self.layout.value_size, member.action, 0)

        tx.change(self.layout.member_map, struct.pack("=I", member.place), current(), current)

    # -- groups --------------------------------------------------------------------------------------------

    def insert_group(
        self, group_id: int, members: Mapping[int, Share], max_size: int, tx: Transaction
    ) -> None:
        """Add a group. Raise NotThereError if one of its members does not exist."""
        if group_id in self.groups:
            raise ExistsError
        if len(self.groups) >= self.layout.size:
            raise TableFullError
        self._check(members)
        group = Group(self._group_places.take(tx), {}, max_size)
        self._place(group, tx)
        self.groups[group_id] = group
        tx.on_undo(lambda: self.groups.pop(group_id))
        self._set_members(group, members, tx)
        self._write_group(group, tx)

    def modify_group(self, group_id: int, members: Mapping[int, Share], tx: Transaction) -> None:
        """Replace the members of a group."""
        group = self.group(group_id)
        self._check(members)
        self._set_members(group, members, tx)
        self._write_group(group, tx)

    def delete_group(self, group_id: int, tx: Transaction) -> None:
        """Remove a group. Raise InUseError if an entry uses it."""
        group = self.group(group_id)
        if group.entries:
            raise InUseError
        self._set_members(group, {}, tx)
        del self.groups[group_id]
        tx.on_undo(lambda: self.groups.__setitem__(group_id, group))
        self._drop_group(group, tx)

    def group(self, group_id: int) -> Group:
        """Return the group with this id, which a client has written. Raise NotThereError if there is none."""
        if group_id not in self.groups:
            raise NotThereError
        return self.groups[group_id]

    def _check(self, members: Mapping[int, Share]) -> None:
        for member_id in members:
            self._member(member_id)

    def _set_members(self, group: Group, shares: Mapping[int, Share], tx: Transaction) -> None:
        before, place = group.members, group.place
        affected = sorted({*before, *shares})
        for member_id in affected:
            member = self.members[member_id]
            share = shares.get(member_id)
            while share is not None and len(member.handles) < share.weight:
                member.handles.append(self._handles.take(tx))
                tx.on_undo(member.handles.pop)
            weights = dict(member.groups)
            tx.on_undo(lambda m=member, w=weights: setattr(m, "groups", w))  # type: ignore[misc]
            member.groups = {g: w for g, w in weights.items() if g != place}
            if share is not None:
                member.groups[place] = share.weight
        for member_id in affected:
            member = self.members[member_id]
            while len(member.handles) > max(1, *member.groups.values(), 0):
                handle = member.handles.pop()
                tx.on_undo(lambda m=member, h=handle: m.handles.append(h))  # type: ignore[misc]
                self._handles.give(handle, tx)
        self._unwatch(group, tx)
        group.members = dict(shares)
        tx.on_undo(lambda: setattr(group, "members", before))
        self._watch(group, tx)

    def _place(self, group: Group, tx: Transaction) -> None:
        self._by_place[group.place] = group
        tx.on_undo(lambda: self._by_place.pop(group.place))

    def _drop_group(self, group: Group, tx: Transaction) -> None:
        del self._by_place[group.place]
        tx.on_undo(lambda: self._by_place.__setitem__(group.place, group))
        self._group_places.give(group.place, tx)
        self._write_group(group, tx)

    def _write_group(self, group: Group, tx: Transaction) -> None:
        assert self.layout.group_map is not None
        place = group.place

        def current() -> bytes | None:
            found = self._by_place.get(place)
            return None if found is None else self._group_value(found)

        tx.change(self.layout.group_map, struct.pack("=I", place), current(), current)

    def places(self, group: Group) -> list[Member]:
        """Return the member at each place of a group: a member of weight n is in the list n times.

        Omit members whose watch port is down.
        """
        with_handles: list[tuple[int, Member]] = []
        for key, share in group.members.items():
            member = group.own[key] if isinstance(group, OneShot) else self.members[key]
            if share.port is None or self._is_up(share.port):
                with_handles += [(h, member) for h in member.handles[: share.weight]]
        return [m for _, m in sorted(with_handles, key=lambda pair: pair[0])]

    def _group_value(self, group: Group) -> bytes:
        out = bytearray(self.layout.group_value_size)
        places = [m.place for m in self.places(group)]
        struct.pack_into(f"={1 + len(places)}I", out, 0, len(places), *places)
        return bytes(out)

    # -- one-shot ------------------------------------------------------------------------------------------

    def make_one_shot(
        self, actions: Sequence[tuple[Action, Share]], text: bytes, tx: Transaction
    ) -> Reference:
        """Make a one-shot: a group for one entry, with new members for these actions."""
        if self._own + len(actions) > self.layout.size:
            raise TableFullError
        own, first = [], len(tx.changes)
        for action, share in actions:
            member = self._new_member(action, tx)
            member.handles += [self._handles.take(tx) for _ in range(share.weight - 1)]
            own.append(member)
        shares = {i: share for i, (_, share) in enumerate(actions)}
        group = OneShot(self._group_places.take(tx), shares, own=own)
        self._place(group, tx)
        self._owns(len(own), tx)
        self._watch(group, tx)
        self._write_group(group, tx)
        tx.hide(first)
        return Reference(TO_GROUP, group.place, one_shot=text)

    def drop_one_shot(self, reference: Reference, tx: Transaction) -> None:
        """Remove a one-shot: the group and the members of an entry that was removed or changed."""
        group = self._by_place[reference.place]
        assert isinstance(group, OneShot)
        first = len(tx.changes)
        self._owns(-len(group.own), tx)
        self._unwatch(group, tx)
        self._drop_group(group, tx)
        tx.hide(first)
        for member in group.own:
            self._drop_member(member, tx)

    def _owns(self, more: int, tx: Transaction) -> None:
        self._own += more
        tx.on_undo(lambda: setattr(self, "_own", self._own - more))

    @property
    def programmed(self) -> bool:
        """True if the client has written members or groups. Then the profile accepts no one-shots."""
        return bool(self.members or self.groups)

    @property
    def one_shot(self) -> bool:
        """True if entries have one-shots. Then the profile accepts no other members or groups."""
        return self._own > 0

    # -- references ----------------------------------------------------------------------------------------

    def refer_to_member(self, member_id: int) -> Reference:
        """Return the reference of an entry to a member."""
        return Reference(TO_MEMBER, self._member(member_id).place, member_id)

    def refer_to_group(self, group_id: int) -> Reference:
        """Return the reference of an entry to a group that a client has written."""
        return Reference(TO_GROUP, self.group(group_id).place, group_id)

    def count(self, reference: Reference, by: int, tx: Transaction) -> None:
        """Add `by` to the number of entries that refer to a member or group. `by` is 1 or -1."""
        if reference.one_shot:
            return
        thing: Member | Group
        thing = self.members[reference.id] if reference.kind == TO_MEMBER else self.groups[reference.id]
        thing.entries += by
        tx.on_undo(lambda: setattr(thing, "entries", thing.entries - by))

    # -- links ---------------------------------------------------------------------------------------------

    def _watch(self, group: Group, tx: Transaction) -> None:
        for port in {s.port for s in group.members.values() if s.port is not None}:
            self._watched.setdefault(port, {})[group.place] = group
            tx.on_undo(lambda p=port: self._watched[p].pop(group.place, None))  # type: ignore[misc]

    def _unwatch(self, group: Group, tx: Transaction) -> None:
        for port in {s.port for s in group.members.values() if s.port is not None}:
            self._watched[port].pop(group.place, None)
            tx.on_undo(lambda p=port: self._watched[p].__setitem__(group.place, group))  # type: ignore[misc]

    def link_changed(self, port: int, tx: Transaction) -> None:
        """Rewrite every group with a member whose watch port is this port."""
        for group in self._watched.get(port, {}).values():
            self._write_group(group, tx)
