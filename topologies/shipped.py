"""YAML that comes with mrclab, or is a person's own: told apart by whether the name is a shipped one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from linux.errors import InputError
from topologies.build import build_fabric
from topologies.model import Fabric


@dataclass(frozen=True, slots=True)
class Shipped:
    """What a ``package`` ships in a ``folder`` of its own ("": at its top), each a ``what`` to people."""

    what: str
    package: str
    folder: str = ""

    def names(self) -> tuple[str, ...]:
        """The names of all, in order."""
        entries = files(self.package).joinpath(self.folder).iterdir()
        return tuple(sorted(f.name.removesuffix(".yaml") for f in entries if f.name.endswith(".yaml")))

    def text(self, name_or_file: str) -> tuple[str, str]:
        """The YAML of a shipped name or of a file, and what to call it in errors. Raises InputError."""
        if name_or_file in self.names():
            where = f"{name_or_file}.yaml"
            return files(self.package).joinpath(self.folder, where).read_text(encoding="utf-8"), where
        try:
            return Path(name_or_file).read_text(encoding="utf-8"), name_or_file
        except (FileNotFoundError, NotADirectoryError):
            known = ", ".join(self.names())
            raise InputError(f"no {self.what} '{name_or_file}': give a file or one of {known}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot read {self.what} '{name_or_file}': {reason}") from None


TOPOLOGIES = Shipped("topology", "topologies")


def shipped_topologies() -> tuple[str, ...]:
    """The names of the topologies that come with mrclab."""
    return TOPOLOGIES.names()


def load_fabric(name_or_file: str) -> Fabric:
    """The fabric of a shipped name or of a YAML file. Raises InputError on neither, and on nonsense."""
    return build_fabric(*TOPOLOGIES.text(name_or_file))
