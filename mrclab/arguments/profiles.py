"""The options of ``mrclab profile``."""

from __future__ import annotations

import argparse

from mrclab.arguments.parser import add_json


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options to the parser of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    show = actions.add_parser("show", help="Show the profiles of all NICs in use, or of some hosts'.")
    _hosts(show)
    show.add_argument("--evs", action="store_true", help="Show the state of every EV.")

    for name, meaning in (("deny", "Use some EVs no more."), ("allow", "Use them again.")):
        action = actions.add_parser(name, help=meaning)
        _hosts(action)
        _profile(action)
        action.add_argument(
            "--port", type=int, action="append", metavar="N", help="All EVs of a port, from 1: p0 is port 1."
        )
        action.add_argument("--ev", action="append", metavar="EV", help="One EV, such as 0x28000@3.")

    replace = actions.add_parser("replace", help="Put an EV in the place of another of an EXPLICIT profile.")
    replace.add_argument("hosts", metavar="HOST", nargs=1, help="The host, such as h0.")
    replace.add_argument("old", metavar="OLD", help="The EV to leave out, such as 0x28000@3.")
    replace.add_argument("new", metavar="NEW", help="The EV to use instead, such as 0x28001@3.")
    replace.add_argument("--all-copies", action="store_true", help="Replace all copies, not the first alone.")
    _profile(replace)

    events = actions.add_parser("events", help="Take the EV events that wait.")
    _hosts(events)
    _profile(events)

    create = actions.add_parser("create", help="Create a profile for queue pairs to come.")
    _hosts(create)
    _kind(create, ("ev", "cc"))
    create.add_argument(
        "--algorithm", metavar="NAME", help="The algorithm of a cc profile: uet-1.0-nscc (default) or none."
    )
    create.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="Set a parameter, such as gamma=0.5.",
    )
    create.add_argument("--count", type=int, metavar="N", help="The EVs for each port, of an ev profile.")
    create.add_argument(
        "--min-active",
        type=int,
        default=0,
        metavar="N",
        help="The number of EVs that stay in use whatever is lost.",
    )

    remove = actions.add_parser("remove", help="Remove a profile that nothing uses.")
    _hosts(remove)
    _kind(remove, ("format", "ev", "cc"))

    for action in (show, events, create, remove, replace, *(actions.choices[n] for n in ("deny", "allow"))):
        add_json(action)


def _hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOST", nargs="*", help="The hosts, such as h0 (all).")


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", type=int, default=1, metavar="ID", help="The EV profile (1).")


def _kind(parser: argparse.ArgumentParser, kinds: tuple[str, ...]) -> None:
    parser.add_argument("--kind", choices=kinds, required=True, help="The kind of profile.")
    parser.add_argument("--id", type=int, required=True, metavar="ID", help="The profile.")
