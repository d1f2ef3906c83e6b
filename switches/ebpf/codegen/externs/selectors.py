"""Write the code of action profiles and selectors: find the member whose action runs for an entry."""

from __future__ import annotations

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.backend.asm import I32, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.externs.hashes import HashWriter
from mrclab.switches.ebpf.plan import (
    GROUP_LIMIT,
    TO_GROUP,
    VALUE_HEADER,
    ProfileLayout,
    layout_action,
    round8,
    value_size_of,
)
from mrclab.switches.v1model.declarations import Action, ActionProfile
from mrclab.switches.v1model.program import Program

_DEFAULT_SIZE = 1024  # number of members if the program does not set a size


def layout_profile(program: Program, profile: ActionProfile, pool: MapPool) -> ProfileLayout:
    """Lay out an action profile. Raise UnsupportedError if different actions have the same name."""
    users = [t for t in program.tables() if t.profile == profile.name]
    by_name: dict[str, Action] = {}
    for table in users:
        for number in table.action_ids:
            action = program.actions[number]
            if by_name.setdefault(action.name, action).params != action.params:
                what = f"action {action.name} with other parameters in another table of {profile.name}"
                raise UnsupportedError(what, str(profile.source))
    actions = tuple(layout_action(a, n + 1, profile.source) for n, a in enumerate(by_name.values()))
    value_size = value_size_of(actions)
    size = profile.size or _DEFAULT_SIZE
    members = pool.add(MapSpec(f"{profile.name}.member", MapType.ARRAY, 4, value_size, size))
    groups = None
    if profile.selector is not None:
        spec = MapSpec(
            f"{profile.name}.group", MapType.HASH, 4, round8(4 + 4 * GROUP_LIMIT), size, NO_PREALLOC
        )
        groups = pool.add(spec)
    return ProfileLayout(profile.name, members, groups, size, GROUP_LIMIT, value_size, actions)


class SelectorWriter:
    """Write the code that finds the member of an entry."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm

    def member(self, profile: ProfileLayout, value: Value, nothing: object) -> Value:
        """Return the address of the member's value. If there is no member, the code jumps to `nothing`."""
        asm, b = self.asm, self.asm.b
        kind, place = asm.load(value, 32, 4), asm.load(asm.at(value, VALUE_HEADER), 32, 4)
        selector = self.gen.program.profiles[profile.name].selector
        if selector is not None:
            assert profile.group_map is not None
            begin = b.block
            choose, chosen = asm.block("select"), asm.block("selected")
            b.cbranch(b.icmp_unsigned("==", kind, const(32, TO_GROUP)), choose, chosen)
            asm.enter(choose)
            hashed = HashWriter(self.gen).hash(selector)
            picked = self._pick(profile, profile.group_map, place, asm.fit(hashed, 32), nothing)
            picked_at = b.block
            b.branch(chosen)
            asm.enter(chosen)
            either = b.phi(I32)
            either.add_incoming(place, begin)
            either.add_incoming(picked, picked_at)
            place = either
        asm.store(place, self.gen.index_key, 4)
        member = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(profile.member_map), self.gen.index_key)
        found = asm.block("member")
        b.cbranch(asm.is_null(member), nothing, found)
        asm.enter(found)
        return member

    def _pick(
        self, profile: ProfileLayout, group_map: int, place: Value, hashed: Value, nothing: object
    ) -> Value:
        """Return the index of the member at place `hash modulo size` of a group, as BMv2 does."""
        asm, b = self.asm, self.asm.b
        asm.store(place, self.gen.index_key, 4)
        group = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(group_map), self.gen.index_key)
        there, some, inside = (asm.block(f"group.{n}") for n in ("there", "some", "inside"))
        b.cbranch(asm.is_null(group), nothing, there)
        asm.enter(there)
        count = asm.load(group, 32, 4)
        b.cbranch(b.icmp_unsigned("==", count, const(32, 0)), nothing, some)
        asm.enter(some)
        index = b.urem(hashed, count)
        b.cbranch(b.icmp_unsigned("<", index, const(32, profile.group_capacity)), inside, nothing)
        asm.enter(inside)
        offset = b.add(b.shl(asm.fit(index, 64), const(64, 2)), const(64, 4))
        return asm.load(asm.at(group, offset), 32, 4)
