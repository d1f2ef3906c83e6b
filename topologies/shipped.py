"""Finding a topology: by the name of a shipped one, or by a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from topologies.build import build_fabric
from topologies.errors import InputError
from topologies.model import Fabric


def shipped_topologies() -> tuple[str, ...]:
    """The names of the topologies that come with mrclab."""
    return tuple(
        sorted(
            f.name.removesuffix(".yaml") for f in files("topologies").iterdir() if f.name.endswith(".yaml")
        )
    )


def load_fabric(name_or_file: str) -> Fabric:
    """The fabric of a shipped name or of a YAML file. Raises InputError on neither, and on nonsense."""
    if name_or_file in shipped_topologies():
        text = files("topologies").joinpath(f"{name_or_file}.yaml").read_text(encoding="utf-8")
        return build_fabric(text, f"{name_or_file}.yaml")
    try:
        text = Path(name_or_file).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        known = ", ".join(shipped_topologies())
        raise InputError(f"no topology '{name_or_file}': give a file or one of {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read topology '{name_or_file}': {error}") from None
    return build_fabric(text, name_or_file)
