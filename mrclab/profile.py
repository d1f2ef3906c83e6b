"""``mrclab profile``: show and change the profiles of NICs (EVs, congestion control) on the running fabric.

Each process with a NIC has a socket in its host's namespace (`mrclab.hosts.profile_socket`). A request is
sent to the sockets of all chosen hosts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from mrclab.hosts.mrc.profiles.profile import NSCC
from mrclab.hosts.profile_socket import ask, sockets_here
from mrclab.linux.errors import InputError
from mrclab.linux.namespaces import inside
from mrclab.terminal import terminal
from mrclab.testbed.names import require_root
from mrclab.testbed.network import FabricNetwork

Answers = Mapping[str, Sequence[Mapping[str, Any]]]
"""The answers by host. A host has one answer for each of its NICs in use."""


def profile(args: argparse.Namespace) -> int:
    """Show or change profiles. Return 2 if a NIC reports an error. Raise InputError on bad input."""
    request = _request(args)
    network = FabricNetwork.attached()
    known = [host.name for host in network.fabric.hosts]
    for host in args.hosts:
        if host not in known:
            raise InputError(f"no host '{host}' in topology {network.fabric.name}: {', '.join(known)}")
    require_root("profile ...")
    answers = _ask_all(network, args.hosts or known, request)
    if not any(answers.values()):
        whose = f"on {', '.join(args.hosts)}" if args.hosts else "on the fabric"
        raise InputError(f"no NIC is in use {whose}: start traffic, such as 'mrclab perf' or 'mrclab live'")
    if args.json:
        print(json.dumps(answers, indent=2))
    else:
        _SHOW[args.action](answers, args)
    return 2 if any(_failures(answer) for found in answers.values() for answer in found) else 0


def _request(args: argparse.Namespace) -> dict[str, Any]:
    action: str = args.action
    if action == "show":
        return {"do": "show", "evs": args.evs}
    if action in ("deny", "allow"):
        if bool(args.port) == bool(args.ev):
            raise InputError(f"{action} what? Give --port N, or --ev EV")
        which = {"ports": args.port} if args.port else {"evs": args.ev}
        state = "DENIED" if action == "deny" else "GOOD"
        return {"do": "set", "state": state, "profile": args.profile, **which}
    if action == "replace":
        pair = {"old": args.old, "new": args.new, "all": args.all_copies}
        return {"do": "replace", "profile": args.profile, **pair}
    if action == "events":
        return {"do": "events", "profile": args.profile}
    if action == "remove":
        return {"do": "remove", "kind": args.kind, "id": args.id}
    if args.kind == "ev":
        if args.count is None:
            raise InputError("--count is missing: how many EVs each port has")
        return {"do": "create", "kind": "ev", "id": args.id} | {
            "count": args.count,
            "min_active": args.min_active,
        }
    algorithm = None if args.algorithm == "none" else args.algorithm or NSCC
    parameters = dict(map(_parameter, args.set))
    return {"do": "create", "kind": "cc", "id": args.id, "algorithm": algorithm, "parameters": parameters}


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"--set takes NAME=NUMBER, such as gamma=0.5, not '{text}'") from None
    return name, int(number) if number.is_integer() else number


def _ask_all(network: FabricNetwork, hosts: Sequence[str], request: dict[str, Any]) -> Answers:
    found: dict[str, list[dict[str, Any]]] = {}
    for host in hosts:
        found[host] = []
        with inside(network.names.host(host)):
            for name in sockets_here():
                try:
                    found[host].append(ask(name, request))
                except OSError as error:
                    found[host].append({"error": f"a NIC on {host} does not answer: {error}"})
    return found


def _failures(answer: Mapping[str, Any]) -> list[str]:
    if "error" in answer:
        return [str(answer["error"])]
    return [f"{ev}: {outcome}" for ev, outcome in answer.get("results", {}).items() if outcome != "ok"]


def _lines(answers: Answers) -> list[tuple[str, Mapping[str, Any]]]:
    return [(host, answer) for host, found in answers.items() for answer in found]


def _show(answers: Answers, args: argparse.Namespace) -> None:
    table = Table(box=None, header_style="bold")
    for heading in ("host", "profile", "id", "state", "what", "queue pairs", "EVs"):
        table.add_column(heading)
    for host, answer in _lines(answers):
        for kind in ("formats", "evs", "ccs"):
            for entry in answer.get(kind, ()):
                states = ", ".join(f"{n} {state}" for state, n in entry.get("states", {}).items())
                what = str(entry.get("mode") or entry.get("algorithm") or "no congestion control")
                row = (kind.removesuffix("s"), str(entry["id"]), entry["state"], what)
                table.add_row(host, *row, str(entry["queue_pairs"] or "-"), states or "-")
    terminal().print(table)
    for host, answer in _lines(answers):
        for failure in _failures(answer):
            print(f"{host}: {failure}")
        for entry in answer.get("evs", ()) if args.evs else ():
            for ev, state in entry.get("evs", {}).items():
                print(f"{host}  {ev}  {state}")


def _set(answers: Answers, args: argparse.Namespace) -> None:
    done = "denied" if args.action == "deny" else "allowed"
    for host, answer in _lines(answers):
        ports = Counter(
            ev.partition("@")[2] for ev, outcome in answer.get("results", {}).items() if outcome == "ok"
        )
        for port, count in sorted(ports.items()):
            print(f"{host}: {done} {count} EVs of port {port}")
        for failure in _failures(answer):
            print(f"{host}: {failure}")


def _events(answers: Answers, args: argparse.Namespace) -> None:
    for host, answer in _lines(answers):
        for event in answer.get("events", ()):
            lost = f" ({event['dropped']} events before it were dropped)" if event["dropped"] else ""
            print(f"{host}  {event['ev']}  {event['state']}{lost}")
        for failure in _failures(answer):
            print(f"{host}: {failure}")


def _done(answers: Answers, args: argparse.Namespace) -> None:
    words = {"create": "created", "remove": "removed", "replace": "replaced"}
    for host, answer in _lines(answers):
        for failure in _failures(answer):
            print(f"{host}: {failure}")
        if "error" not in answer:
            what = f"{answer['replaced']} entries" if "replaced" in answer else f"profile {answer['id']}"
            print(f"{host}: {words[args.action]} {what}")


_SHOW = {
    "show": _show,
    "deny": _set,
    "allow": _set,
    "events": _events,
    "create": _done,
    "remove": _done,
    "replace": _done,
}
