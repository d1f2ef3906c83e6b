"""Groups and one-shots as messages: weights, watch ports, limits (specification, section 9.2)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.schema import ProfileSchema, TableSchema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode
from mrclab.switches.ebpf.runtime.entries import Action
from mrclab.switches.ebpf.runtime.profiles import Share

_PORT_BITS = 32


def read_share(
    profile: ProfileSchema,
    message: p4r.ActionProfileGroup.Member | p4r.ActionProfileAction,
    ports: Container[int],
) -> Share:
    """Read the weight and the watch port of a member of a group. Raise P4RuntimeError."""
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
    elif not message.watch_port:  # no port to watch
        return Share(weight, None, (kind, b""))
    else:
        port, raw = decode(message.watch_port, _PORT_BITS, f"{name}, watch port"), message.watch_port
    if port not in ports:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{name}: there is no port {port} to watch")
    return Share(weight, port, (kind, raw))


def write_share(
    profile: ProfileSchema, share: Share, to: p4r.ActionProfileGroup.Member | p4r.ActionProfileAction
) -> None:
    """Write the weight and the watch port into a message, as they were received."""
    to.weight = 0 if profile.weights_disallowed else share.weight
    if share.watch is not None:
        setattr(to, share.watch[0], share.watch[1])


def check_size(profile: ProfileSchema, shares: Sequence[Share], limit: int, code: Code) -> None:
    """Raise P4RuntimeError unless a group of that size is allowed; `limit` 0 is none but the target's."""
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
    """Return the actions of a one-shot with their shares, and its bytes. Raise P4RuntimeError."""
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
