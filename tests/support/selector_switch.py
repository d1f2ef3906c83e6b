"""A switch whose tables choose members of groups, and the model of P4 with the same members."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4i, p4r

from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import (
    Client,
    Names,
    octets,
)


class Switch:
    """The client of a switch that runs a program, and the P4 model. Both get the same entries."""

    def __init__(self, client: Client, info: p4i.P4Info, json: bytes) -> None:
        self.client = client
        self.names = Names(info)
        self.profiles = {p.preamble.name: p.preamble.id for p in info.action_profiles}
        self.model = Interpreter(read_program(json))
        client.become_primary()
        client.set_pipeline(json, info)

    def member(self, profile: str, number: int, name: str, *args: int) -> p4r.Entity:
        out = p4r.Entity()
        out.action_profile_member.action_profile_id = self.profiles[profile]
        out.action_profile_member.member_id = number
        self.fill(out.action_profile_member.action, name, *args)
        self.model.profiles[profile].members[number] = (name, args)
        return out

    def fill(self, to: p4r.Action, name: str, *args: int) -> None:
        action = self.names.actions[name]
        to.action_id = action.preamble.id
        for p, arg in zip(action.params, args, strict=True):
            to.params.add(param_id=p.id, value=octets(arg))

    def group(self, profile: str, number: int, weights: dict[int, int], max_size: int = 0) -> p4r.Entity:
        out = p4r.Entity()
        out.action_profile_group.action_profile_id = self.profiles[profile]
        out.action_profile_group.group_id = number
        out.action_profile_group.max_size = max_size
        for member, weight in weights.items():
            out.action_profile_group.members.add(member_id=member, weight=weight)
        return out

    def entry(self, table: str, match: dict[str, Any], priority: int = 0, **to: int) -> p4r.TableEntry:
        out = self.names.entry(table, match, priority=priority)
        for kind, number in to.items():
            setattr(out.action, f"action_profile_{kind}_id", number)
        return out

    def one_shot(
        self, table: str, match: dict[str, Any], *actions: tuple[int, str, int], priority: int = 0
    ) -> p4r.TableEntry:
        out = self.names.entry(table, match, priority=priority)
        for weight, name, *args in actions:
            a = out.action.action_profile_action_set.action_profile_actions.add(weight=weight)
            self.fill(a.action, name, *args)
        return out


def put_in(entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=p4r.Update.INSERT, entity=entity)


def change(entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=p4r.Update.MODIFY, entity=entity)
