"""Members and groups of action profiles, and one-shots (specification, section 9.2).

A one-shot is a group that belongs to one table entry. This module also handles weights, watch ports and size
limits of groups and one-shots.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import ProfileSchema, Schema, TableSchema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode
from mrclab.switches.ebpf.runtime.entries import Action, ExistsError, NotThereError, TableFullError
from mrclab.switches.ebpf.runtime.profiles import InUseError, ProfileState, Share
from mrclab.switches.ebpf.runtime.transaction import Transaction

_PORT_BITS = 32


def read_share(
    profile: ProfileSchema,
    message: p4r.ActionProfileGroup.Member | p4r.ActionProfileAction,
    ports: Container[int],
) -> Share:
    """Read the weight and watch port of a group's member. Raise P4RuntimeError if a value is invalid."""
    name, weight = profile.layout.name, message.weight
    if profile.weights_disallowed:
        if weight:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name} takes no weights")
        weight = 1
    if weight <= 0:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: a weight must be above 0")
    if 0 < profile.max_member_weight < weight:
        raise P4RuntimeError(
            Code.INVALID_ARGUMENT, f"{name}: weight {weight} is above {profile.max_member_weight}"
        )
    kind = message.WhichOneof("watch_kind")
    if kind is None:
        return Share(weight)
    if kind == "watch":
        port: int = message.watch
        raw: int | bytes = message.watch
    elif not message.watch_port:  # an empty watch port means that there is none
        return Share(weight, None, (kind, b""))
    else:
        port, raw = decode(message.watch_port, _PORT_BITS, f"{name}, watch port"), message.watch_port
    if port not in ports:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: there is no port {port} to watch")
    return Share(weight, port, (kind, raw))


def write_share(
    profile: ProfileSchema, share: Share, to: p4r.ActionProfileGroup.Member | p4r.ActionProfileAction
) -> None:
    """Write the weight and the watch port into a message, in the form in which the client sent them."""
    to.weight = 0 if profile.weights_disallowed else share.weight
    if share.watch is not None:
        setattr(to, share.watch[0], share.watch[1])


def check_size(profile: ProfileSchema, shares: Sequence[Share], limit: int, code: Code) -> None:
    """Raise P4RuntimeError if a group is too large. If `limit` is 0, only the target's limit applies."""
    places = sum(s.weight for s in shares)
    size = len(shares) if profile.sum_of_members else places
    name = profile.layout.name
    if 0 < limit < size:
        raise P4RuntimeError(code, f"{name}: a group of {size} is larger than {limit}")
    if places > profile.layout.group_capacity:
        raise P4RuntimeError(
            Code.RESOURCE_EXHAUSTED, f"{name}: weights sum up to more than {profile.layout.group_capacity}"
        )


def read_one_shot(
    table: TableSchema, message: p4r.ActionProfileActionSet, ports: Container[int]
) -> tuple[list[tuple[Action, Share]], bytes]:
    """Return a one-shot's actions, each with its weight and watch port, and the bytes of the message.

    Raise P4RuntimeError if the message is invalid.
    """
    profile = table.profile
    assert profile is not None
    if message.action_selection_mode != p4r.ActionProfileActionSet.DEFAULT_MODE_DETERMINED_BY_ACTION_SELECTOR:
        raise P4RuntimeError(Code.UNIMPLEMENTED, "selection modes of a group are not supported")
    if message.size_semantics != p4r.ActionProfileActionSet.DEFAULT_SIZE_DETERMINED_BY_ACTION_SELECTOR:
        raise P4RuntimeError(Code.UNIMPLEMENTED, "size semantics of a group are not supported")
    actions = [
        (table.read_plain(a.action), read_share(profile, a, ports)) for a in message.action_profile_actions
    ]
    if not actions:
        raise P4RuntimeError(Code.UNIMPLEMENTED, "a one-shot without actions is not supported")
    check_size(profile, [s for _, s in actions], profile.max_group_size, Code.INVALID_ARGUMENT)
    return actions, message.SerializeToString(deterministic=True)


class _Entries:
    """The common code of members and groups. `what` names the kind in error messages."""

    what = ""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def _profile(self, profile_id: int) -> ProfileSchema:
        if profile_id not in self.schema.profiles:
            raise P4RuntimeError(Code.NOT_FOUND, f"no action profile {profile_id}")
        return self.schema.profiles[profile_id]

    def _state(self, profile: ProfileSchema) -> ProfileState:
        return self.running.profiles[profile.layout.name]

    def _table(self, profile: ProfileSchema) -> TableSchema:
        table = self.schema.actions_of(profile)
        if table is None:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"no table uses {profile.layout.name}")
        return table

    def _write(
        self, profile: ProfileSchema, number: int, kind: p4r.Update.Type.ValueType, tx: Transaction
    ) -> None:
        raise NotImplementedError

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Insert, modify or delete a member or a group."""
        self.update = update
        profile_id, number = self._ids(update.entity)
        profile = self._profile(profile_id)
        name = profile.layout.name
        if number == 0:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: a {self.what} has an id other than 0")
        if update.type == p4r.Update.INSERT and self._state(profile).one_shot:
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"{name} has one-shots: members and groups cannot be mixed with them"
            )
        try:
            if update.type == p4r.Update.UNSPECIFIED:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without a type")
            self._write(profile, number, update.type, tx)
        except ExistsError as exc:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"{name} has {self.what} {number} already") from exc
        except NotThereError as exc:
            raise P4RuntimeError(
                Code.NOT_FOUND, f"{name} has no {self.what} {number}, or not all of its members"
            ) from exc
        except InUseError as exc:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, f"{self.what} {number} of {name} is in use"
            ) from exc
        except TableFullError as exc:
            raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"{name} is full ({profile.layout.size})") from exc

    def _ids(self, entity: p4r.Entity) -> tuple[int, int]:
        raise NotImplementedError

    def _wanted(self, profile_id: int) -> list[ProfileSchema]:
        return [self._profile(profile_id)] if profile_id else list(self.schema.profiles.values())


class MemberEntries(_Entries):
    """Write and read members of action profiles."""

    what = "member"

    def _ids(self, entity: p4r.Entity) -> tuple[int, int]:
        return entity.action_profile_member.action_profile_id, entity.action_profile_member.member_id

    def _write(
        self, profile: ProfileSchema, number: int, kind: p4r.Update.Type.ValueType, tx: Transaction
    ) -> None:
        message, state = self.update.entity.action_profile_member, self._state(profile)
        if kind == p4r.Update.DELETE:
            state.delete_member(number, tx)
            return
        if not message.HasField("action"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a member needs an action")
        action: Action = self._table(profile).read_plain(message.action)
        if kind == p4r.Update.INSERT:
            state.insert_member(number, action, tx)
        else:
            state.modify_member(number, action, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one member, all members of a profile, or all members of all profiles."""
        wanted = entity.action_profile_member
        for profile in self._wanted(wanted.action_profile_id):
            members = self._state(profile).members
            if wanted.member_id and wanted.action_profile_id and wanted.member_id not in members:
                raise P4RuntimeError(
                    Code.NOT_FOUND, f"{profile.layout.name} has no member {wanted.member_id}"
                )
            for number, member in members.items():
                if wanted.member_id in (0, number):
                    out = p4r.ActionProfileMember(action_profile_id=profile.id, member_id=number)
                    self._table(profile).write_plain(member.action, out.action)
                    yield p4r.Entity(action_profile_member=out)


class GroupEntries(_Entries):
    """Write and read groups of action profiles."""

    what = "group"

    def _ids(self, entity: p4r.Entity) -> tuple[int, int]:
        return entity.action_profile_group.action_profile_id, entity.action_profile_group.group_id

    def _write(
        self, profile: ProfileSchema, number: int, kind: p4r.Update.Type.ValueType, tx: Transaction
    ) -> None:
        message, state, name = (
            self.update.entity.action_profile_group,
            self._state(profile),
            profile.layout.name,
        )
        if profile.layout.group_map is None:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name} is no selector and has no groups")
        if kind == p4r.Update.DELETE:
            state.delete_group(number, tx)
            return
        if kind == p4r.Update.MODIFY and state.group(number).max_size != message.max_size:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: max_size of a group cannot be changed")
        if message.max_size < 0 or 0 < profile.max_group_size < message.max_size:
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"{name}: max_size is not in 0..{profile.max_group_size}"
            )
        if message.max_size > profile.layout.group_capacity:
            raise P4RuntimeError(
                Code.RESOURCE_EXHAUSTED, f"{name}: groups have at most {profile.layout.group_capacity} places"
            )
        shares: dict[int, Share] = {}
        for m in message.members:
            if m.member_id in shares:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: member {m.member_id} is given twice")
            shares[m.member_id] = read_share(profile, m, self.running.datapath.ifindexes)
        limit = message.max_size or profile.max_group_size
        check_size(profile, list(shares.values()), limit, Code.RESOURCE_EXHAUSTED)
        if kind == p4r.Update.INSERT:
            state.insert_group(number, shares, message.max_size, tx)
        else:
            state.modify_group(number, shares, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one group, all groups of a profile, or all groups of all profiles."""
        wanted = entity.action_profile_group
        for profile in self._wanted(wanted.action_profile_id):
            groups = self._state(profile).groups
            if wanted.group_id and wanted.action_profile_id and wanted.group_id not in groups:
                raise P4RuntimeError(Code.NOT_FOUND, f"{profile.layout.name} has no group {wanted.group_id}")
            for number, group in groups.items():
                if wanted.group_id not in (0, number):
                    continue
                out = p4r.ActionProfileGroup(
                    action_profile_id=profile.id, group_id=number, max_size=group.max_size
                )
                for member_id, share in group.members.items():
                    write_share(profile, share, out.members.add(member_id=member_id))
                yield p4r.Entity(action_profile_group=out)
