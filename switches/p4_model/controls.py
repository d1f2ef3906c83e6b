"""Controls, their tables, and checksums."""

from __future__ import annotations

from mrclab.switches.p4_model.entries import (
    Between,
    Counts,
    Exact,
    Masked,
    Prefix,
    Rule,
)
from mrclab.switches.p4_model.parser import ParserModel
from mrclab.switches.v1model.pipeline import ActionCall, Conditional, KeyField, Pipeline, Table


class Controls(ParserModel):
    """Runs controls on the frame at hand."""

    def _verify_checksums(self) -> None:
        for c in self.program.checksums:
            header = c.target.header
            there = self.program.headers[header].metadata or self._s.valid.get(header, False)
            if c.verify and there and (c.condition is None or self._truth(c.condition, ())):
                computed = self._hash(self.program.calculations[c.calculation])
                if computed != self._s.fields.get(c.target, 0):
                    self._set_standard("checksum_error", 1)

    def _update_checksums(self) -> None:
        for c in self.program.checksums:
            if c.update and (c.condition is None or self._truth(c.condition, ())):
                self._store(c.target, self._hash(self.program.calculations[c.calculation]))

    def _control(self, pipeline: Pipeline) -> None:
        at = pipeline.start
        while at is not None and not self._s.exited:
            node = pipeline.nodes[at]
            match node:
                case Conditional():
                    at = node.true_next if self._truth(node.expr, ()) else node.false_next
                case Table():
                    at = self._table(node)
                case ActionCall():
                    self._action(self.program.actions[node.action_id], ())
                    at = node.next
        self._s.exited = False

    def _table(self, table: Table) -> str | None:
        rule = self._find(table)
        if rule is not None:
            name, args = rule.action, rule.args
            if table.with_counters:
                self._add(self.direct.setdefault((table.name, rule), Counts()))
            if table.direct_meters is not None:
                declared = self.program.meters[table.direct_meters]
                assert declared.result is not None
                meter = self.direct_meters.get((table.name, rule))
                self._store(declared.result, self._colour(meter, declared))
            if table.profile is not None:
                chosen = self._member(table.profile, rule)
                if chosen is None:
                    return table.next_by_action.get("__HIT__", table.base_default_next)
                name, args = chosen
            action = next(a for i in table.action_ids if (a := self.program.actions[i]).name == name)
        elif table.name in self.defaults:
            name, args = self.defaults[table.name]
            action = next(a for i in table.action_ids if (a := self.program.actions[i]).name == name)
        elif table.default is not None:
            action, args = self.program.actions[table.default.action_id], table.default.data
        else:
            return table.next_by_action.get("__MISS__", table.base_default_next)
        self._action(action, args)
        choice = "__HIT__" if rule is not None else "__MISS__"
        if choice in table.next_by_action:
            return table.next_by_action[choice]
        return table.next_by_action.get(action.name, table.base_default_next)

    def _member(self, name: str, rule: Rule) -> tuple[str, tuple[int, ...]] | None:
        """Return the action that a rule of a table with a profile comes to, None for an empty group."""
        profile, member = self.profiles[name], rule.member
        if rule.group is not None:
            places, selector = profile.groups[rule.group], self.program.profiles[name].selector
            if not places or selector is None:
                return None
            member = places[(self._hash(selector) & 0xFFFFFFFF) % len(places)]
        assert member is not None
        return profile.members[member]

    def _find(self, table: Table) -> Rule | None:
        def key_value(k: KeyField) -> int:
            raw = self._load(k.target) % (1 << self.program.field(k.target).width)
            return raw if k.mask is None else raw & k.mask

        if not table.key:
            return None
        values = [(key_value(k), self.program.field(k.target).width) for k in table.key]
        found = [
            r
            for r in [*self.rules.get(table.name, ()), *self._constant(table)]
            if all(m.matches(v, w) for m, (v, w) in zip(r.key, values, strict=True))
        ]

        def rank(r: Rule) -> tuple[int, int]:
            length = sum(m.length for m in r.key if isinstance(m, Prefix)) if table.match == "lpm" else 0
            return length, r.priority

        return max(found, key=rank, default=None)

    def _constant(self, table: Table) -> list[Rule]:
        out = []
        for e in table.entries:
            key: list[Exact | Prefix | Masked | Between] = []
            for m in e.key:
                match m.match:
                    case "lpm":
                        key.append(Prefix(m.key, m.prefix))
                    case "ternary" | "optional":
                        key.append(Masked(m.key, m.mask))
                    case "range":
                        key.append(Between(m.key, m.end))
                    case _:
                        key.append(Exact(m.key))
            out.append(Rule(tuple(key), self.program.actions[e.action_id].name, e.data, -e.priority))
        return out
