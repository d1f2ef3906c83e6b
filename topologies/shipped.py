"""Find YAML files by name: files that come with mrclab, or a user's own files."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.topologies.build import build_fabric
from mrclab.topologies.model import Fabric
from mrclab.topologies.yaml_lines import MAX_CHARACTERS


@dataclass(frozen=True, slots=True)
class Shipped:
    """The YAML files in a ``folder`` of a ``package``. ``what`` is the word for such a file in messages."""

    what: str
    package: str
    folder: str = ""

    def names(self) -> tuple[str, ...]:
        """Return the names of the files in the folder, sorted, without ``.yaml``."""
        entries = files(self.package).joinpath(self.folder).iterdir()
        return tuple(sorted(f.name.removesuffix(".yaml") for f in entries if f.name.endswith(".yaml")))

    def text(self, name_or_file: str) -> tuple[str, str]:
        """Return the text of a shipped file or of a user's file, and the file's name for error messages.

        Raise InputError if the file cannot be read.
        """
        if name_or_file in self.names():
            where = f"{name_or_file}.yaml"
            return files(self.package).joinpath(self.folder, where).read_text(encoding="utf-8"), where
        try:
            with Path(name_or_file).open(encoding="utf-8") as file:
                # Read one character more than allowed, so that `read_yaml` notices and refuses a larger file.
                return file.read(MAX_CHARACTERS + 1), name_or_file
        except (FileNotFoundError, NotADirectoryError):
            known = ", ".join(self.names())
            near = get_close_matches(name_or_file, self.names(), n=1)
            mend = f"did you mean {near[0]}? Give" if near else "give"
            raise InputError(f"no {self.what} '{name_or_file}': {mend} a file or one of {known}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot read {self.what} '{name_or_file}': {reason}") from None


TOPOLOGIES = Shipped("topology", "mrclab.topologies")


def shipped_topologies() -> tuple[str, ...]:
    """Return the names of the topologies that come with mrclab."""
    return TOPOLOGIES.names()


def load_fabric(name_or_file: str) -> Fabric:
    """Return the fabric of a shipped topology or of a YAML file. Raise InputError if the file is wrong."""
    return build_fabric(*TOPOLOGIES.text(name_or_file))
