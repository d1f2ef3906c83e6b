"""The options of ``mrclab profile``."""

from __future__ import annotations

import argparse


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options to the parser of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    show = actions.add_parser("show", help="the profiles of all NICs in use, or of some hosts'")
    _hosts(show)
    show.add_argument("--evs", action="store_true", help="the state of every EV")

    for name, meaning in (("deny", "leave EVs alone from now on"), ("allow", "use EVs again")):
        action = actions.add_parser(name, help=meaning)
        _hosts(action)
        _profile(action)
        action.add_argument(
            "--port", type=int, action="append", metavar="N", help="all EVs of a port, from 1: p0 is port 1"
        )
        action.add_argument("--ev", action="append", metavar="EV", help="one EV, such as 0x28000@3")

    replace = actions.add_parser("replace", help="put an EV in the place of another of an EXPLICIT profile")
    replace.add_argument("hosts", metavar="HOST", nargs=1, help="whose NIC, such as h0")
    replace.add_argument("old", metavar="OLD", help="EV, such as 0x28000@3")
    replace.add_argument("new", metavar="NEW", help="EV, such as 0x28001@3")
    replace.add_argument("--all-copies", action="store_true", help="not the first copy alone")
    _profile(replace)

    events = actions.add_parser("events", help="take the EV events that wait")
    _hosts(events)
    _profile(events)

    create = actions.add_parser("create", help="create a profile for queue pairs to come")
    _hosts(create)
    _kind(create, ("ev", "cc"))
    create.add_argument("--algorithm", metavar="NAME", help="of a cc profile: uet-1.0-nscc (default) or none")
    create.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="a parameter, such as gamma=0.5"
    )
    create.add_argument("--count", type=int, metavar="N", help="of an ev profile: EVs for each port")
    create.add_argument("--min-active", type=int, default=0, metavar="N", help="EVs that losses retire never")

    remove = actions.add_parser("remove", help="remove a profile that nothing uses")
    _hosts(remove)
    _kind(remove, ("format", "ev", "cc"))

    for action in (show, events, create, remove, replace, *(actions.choices[n] for n in ("deny", "allow"))):
        action.add_argument("--json", action="store_true", help="for programs")


def _hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOST", nargs="*", help="whose NICs, such as h0 (all)")


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", type=int, default=1, metavar="ID", help="of the EV profile (1)")


def _kind(parser: argparse.ArgumentParser, kinds: tuple[str, ...]) -> None:
    parser.add_argument("--kind", choices=kinds, required=True, help="of the profile")
    parser.add_argument("--id", type=int, required=True, metavar="ID", help="of the profile")
