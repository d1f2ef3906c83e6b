"""Find path policies and congestion controls (schemes) by name.

A name is a scheme of mrclab, ``module:Class``, or an entry point of a package.
A package registers its schemes as entry points of the groups ``mrclab.path_policies`` and
``mrclab.congestion_controls``. Python searches ``module:Class`` on its path and in the current directory.
Importing a module runs its code, so name only schemes that you trust.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.congestion import CongestionControl
from mrclab.hosts.mrc.evs.ev import PathPolicy

MakePolicy = Callable[[random.Random], PathPolicy]
MakeControl = Callable[[MrcConfig], CongestionControl]


@dataclass(frozen=True)
class Registry:
    """The schemes of one kind: ``builtin`` schemes in MRC's core, ``shipped`` schemes in other modules."""

    what: str
    option: str
    group: str
    base: type
    builtin: tuple[str, ...]
    shipped: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """Return all valid names, including the names that installed packages register."""
        found = {*self.shipped, *(point.name for point in entry_points(group=self.group))}
        return (*self.builtin, *sorted(found))

    def find(self, name: str) -> type | None:
        """Return the class of the scheme with this name, or None if the scheme is built in.

        Raise ValueError, with a message of one line that suggests a correction, if the name refers to nothing
        or to an object of another kind.
        """
        if name in self.builtin:
            return None
        place = self.shipped.get(name, name)
        found = find_object(place, self.group)
        if found is None:
            choices = ", ".join(self.names())
            raise ValueError(f"no {self.what} '{name}': {self.option} is one of {choices}, or module:Class")
        if not isinstance(found, type) or not issubclass(found, self.base):
            raise ValueError(f"{self.option}: {place} is no class derived from {self.base.__name__}")
        return found


def find_object(name: str, group: str) -> Any:
    """Return the object that a name refers to: ``module:OBJECT``, or an entry point of a group.

    Return None for any other name. Raise ValueError, with a message of one line, if the module cannot be
    imported or has no such object.
    """
    points = {point.name: point.value for point in entry_points(group=group)}
    module, colon, attribute = points.get(name, name).partition(":")
    if not colon or not module or not attribute:
        return None
    here = os.getcwd()
    there = here in sys.path or "" in sys.path
    if not there:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"cannot import {module} for '{name}': {error}") from None
    finally:
        if not there:
            sys.path.remove(here)
    if not hasattr(found, attribute):
        raise ValueError(f"{module} has no {attribute}")
    return getattr(found, attribute)


PATH_POLICIES = Registry(
    what="path policy",
    option="path_policy",
    group="mrclab.path_policies",
    base=PathPolicy,
    builtin=("rotation",),
    shipped={
        "random": "mrclab.hosts.mrc.evs.ev:PathPolicy",
        "two-choices": "mrclab.hosts.schemes.two_choices:TwoChoices",
        "reps": "mrclab.hosts.schemes.reps:Reps",
    },
)
CONGESTION_CONTROLS = Registry(
    what="congestion control",
    option="congestion",
    group="mrclab.congestion_controls",
    base=CongestionControl,
    builtin=("fixed", "nscc"),
    shipped={"aimd": "mrclab.hosts.schemes.aimd:Aimd"},
)


def policy_of(config: MrcConfig) -> MakePolicy | None:
    """Return the class of the path policy; None for the rotation. Raise ValueError for an unknown name."""
    found = PATH_POLICIES.find(config.path_policy)
    return None if found is None else found


def control_of(config: MrcConfig) -> MakeControl | None:
    """Return the class of the congestion control that the options name; None if it is built in.

    Raise the errors of `Registry.find`.
    """
    found = CONGESTION_CONTROLS.find(config.congestion)
    return None if found is None else found
