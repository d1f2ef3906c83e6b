"""Students' switch programs, compiled if p4c is installed, and run by the model of P4 (labs 2 and 3).

``python -m mrclab.labs.p4 FOLDER`` prints which program of a folder is checked. With p4c, it is the source
``switch.p4``. Without p4c, it is the compiled ``switch.json``.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path

from mrclab.labs.checks import Hint
from mrclab.labs.sandbox import files
from mrclab.linux.errors import MrclabError
from mrclab.p4src.compile import has_compiler, run_p4c
from mrclab.switches.p4_model import Interpreter, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.switches.v1model.program import Program

SOURCE, COMPILED = "switch.p4", "switch.json"
_SPLICE = re.compile(r"(?:\\|\?\?/)[^\S\n]*\n")
"""The end of a line that the preprocessor joins with the next line."""
_READS_FILE = re.compile(r"(?:#|%:|\?\?=)(?:\s|/\*(?:[^*]|\*(?!/))*\*/)*(?:include|import|embed)")
"""A directive that reads a file. Comments may be inside the directive."""
_KNOWN_INCLUDE = re.compile(r"#[ \t]*include[ \t]*<(?:core|v1model)\.p4>")
WITHOUT_P4C = (
    f"There is no p4c-bm2-ss here: {SOURCE} cannot be compiled, and {COMPILED} is what is checked. "
    f"Copy one of variants/ over it: cp variants/skeleton.json {COMPILED}"
)


def program_of(folder: Path) -> Program:
    """Return a student's program. Raise Hint if it cannot be compiled or read."""
    return _compiled(folder) if has_compiler() else read_compiled(folder / COMPILED)


def read_compiled(path: Path) -> Program:
    """Return a program that p4c compiled. Raise Hint if it cannot be read."""
    try:
        return read_program(files.read(path))
    except OSError:
        raise Hint(f"There is no {path.name}. {WITHOUT_P4C}") from None
    except (ValueError, RecursionError, MrclabError) as error:
        raise Hint(f"{path.name} cannot be read: {error}. {WITHOUT_P4C}") from None


def foreign_include(text: str) -> str | None:
    """Return the first directive of a P4 source that reads another file than p4c's own; None if none does.

    p4c's preprocessor runs with all rights, so it must not read other files of the machine.
    """
    whole = _SPLICE.sub("", text)
    for found in _READS_FILE.finditer(whole):
        if not _KNOWN_INCLUDE.match(whole, found.start()):
            return " ".join(whole[found.start() :][:80].split())
    return None


@cache
def _compiled(folder: Path) -> Program:
    try:
        text = files.read(folder / SOURCE).decode("utf-8", errors="replace")
    except OSError:
        raise Hint(f"{SOURCE} is missing.") from None
    except MrclabError as error:
        raise Hint(f"{error}.") from None
    foreign = foreign_include(text)
    if foreign is not None:
        raise Hint(f"{SOURCE}: {foreign}: only <core.p4> and <v1model.p4> can be included.")
    with tempfile.TemporaryDirectory() as made:
        json_file, p4info = Path(made) / "out.json", Path(made) / "out.p4info.txtpb"
        source = Path(made) / SOURCE
        source.write_text(text, encoding="utf-8")
        done = run_p4c(Path(SOURCE), json_file, p4info, cwd=Path(made))
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
            raise Hint(f"{SOURCE} does not compile: {errors[0].strip()}")
        return read_program(json_file.read_bytes())


def full_name(program: Program, kind: str, last: str) -> str:
    """Return the full name of the table or action whose last part is ``last``. Raise Hint if none exists."""
    names = (
        [t.name for t in program.tables()] if kind == "table" else [a.name for a in program.actions.values()]
    )
    for name in names:
        if name.rsplit(".", 1)[-1] == last:
            return name
    raise Hint(
        f"The program has no {kind} '{last}'. Keep the names of the skeleton, and use the {kind}: "
        "p4c leaves out what no table or apply block uses."
    )


def model_of(program: Program, rules: dict[str, list[Rule]]) -> Interpreter:
    """Return a model of a switch. ``rules`` maps the last part of a table's name to the table's entries."""
    named = {full_name(program, "table", table): found for table, found in rules.items()}
    return Interpreter(program, named)


def main(folder: Path) -> int:
    """Print which program is checked, and read the program. Return the exit code."""
    try:
        program = program_of(folder)
    except Hint as hint:
        print(re.sub(r"\s+", " ", str(hint)))
        return 1
    what = f"{SOURCE}, compiled now" if has_compiler() else f"{COMPILED} (there is no p4c-bm2-ss here)"
    if not has_compiler():
        print(WITHOUT_P4C)
    print(f"checked is {what}: {len(program.tables())} tables, {len(program.actions)} actions")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
