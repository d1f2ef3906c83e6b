"""The third-party packages that mrclab installs: their versions and licences.

    python tools/supply.py lock     write requirements.lock from the packages that are installed here
    python tools/supply.py check    compare it with pyproject.toml and the rules here; exit code 1 or 0
    python tools/supply.py sbom     print a software bill of materials (CycloneDX 1.5, JSON)
    python tools/supply.py images   print arguments of `docker build`: the Dockerfile's images by digest

pyproject.toml has lower bounds of versions, so that mrclab can be installed together with other software. The
lock has the versions with which the tests ran: ``pip install -c requirements.lock .``
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
DOCKERFILE = ROOT / "Dockerfile"
EXTRAS = ("testbed", "live", "labs", "sweep")
"""The extras that users install. The lock has no packages that only developers need."""
ALLOWED = re.compile(
    r"Apache|BSD|MIT|\bISC\b|PSF|Python Software Foundation|MPL|Mozilla|Zlib|HPND|CC0|Unlicense|0BSD|"
    r"BOOST|matplotlib|LLVM|Historical Permission",
    re.IGNORECASE,
)
DENIED = re.compile(r"(?<!L)(?:A?GPL|General Public License)", re.IGNORECASE)
KNOWN = {
    "mininet": "BSD-3-Clause-like (Stanford)",
    "pyroute2": "GPL-2.0-or-later OR Apache-2.0",
}
"""Licences of packages whose metadata do not name them. `CHOSEN` has our choice of two licences."""
CHOSEN = {"pyroute2": "Apache-2.0"}
_IMAGE = re.compile(r"^ARG (?P<argument>\w+_IMAGE)=(?P<image>\S+)$", re.MULTILINE)
_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)  # (?P<licence>.+)")


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    licence: str

    def line(self) -> str:
        """Return the package's line in the lock."""
        return f"{self.name}=={self.version}  # {self.licence}"


def wanted(project: Mapping[str, Any]) -> list[Requirement]:
    """Return the requirements in pyproject.toml for this system, with the extras that users install."""
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])]
    found = [Requirement(text) for text in texts]
    return [
        need for need in found if need.name != "mrclab" and (need.marker is None or need.marker.evaluate())
    ]


def installed(needs: list[Requirement]) -> Iterator[Package]:
    """Yield required packages and their requirements. Raise PackageNotFoundError for a missing package."""
    waiting = [(need.name, tuple(sorted(need.extras))) for need in needs]
    seen: set[tuple[str, str]] = set()
    named: set[str] = set()
    while waiting:
        name, extras = waiting.pop(0)
        name = str(canonicalize_name(name))
        found = distribution(name)
        if name not in named:
            named.add(name)
            if name != "mrclab":
                yield Package(name, found.version, licence(name, found))
        for extra in ("", *extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in found.requires or ():
                need = Requirement(text)
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    waiting.append((need.name, tuple(sorted(need.extras))))


def licence(name: str, found: Distribution) -> str:
    """Return the licence of a package by its metadata, in a few words; "unknown" if it names none."""
    if name in KNOWN:
        return KNOWN[name]
    about = found.metadata
    expression = about.get("License-Expression") or ""
    classified = [
        c.rsplit(" :: ", 1)[1] for c in about.get_all("Classifier") or () if c.startswith("License")
    ]
    text = (about.get("License") or "").strip().splitlines()
    return expression or ", ".join(classified) or (text[0][:60] if text else "unknown")


def read_lock(text: str) -> list[Package]:
    """Return the packages of a lock. Raise ValueError for a wrong line."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"requirements.lock: not a line of a package: {line}")
            found.append(Package(**match.groupdict()))
    return found


def faults(lock: list[Package], needs: list[Requirement]) -> list[str]:
    """Return the errors of a lock: missing packages, versions below bounds, licences not allowed."""
    known = {package.name: package for package in lock}
    found = []
    for need in needs:
        name = str(canonicalize_name(need.name))
        if name not in known:
            found.append(f"{name}: asked for by pyproject.toml and not in the lock")
        elif not need.specifier.contains(known[name].version, prereleases=True):
            version = known[name].version
            found.append(f"{name}: {version} in the lock, and pyproject.toml has {need.specifier}")
    for package in lock:
        terms = CHOSEN.get(package.name, package.licence)
        if DENIED.search(terms) or not ALLOWED.search(terms):
            found.append(f"{package.name}: licence '{package.licence}' is not among those allowed")
    return found


def images(dockerfile: str) -> list[str]:
    """Return `--build-arg NAME=IMAGE@DIGEST` for each image of a Dockerfile, with its present digest.

    Raise OSError without docker, CalledProcessError if a registry does not answer.
    """
    found = []
    for match in _IMAGE.finditer(dockerfile):
        name = match["image"]
        if "@" not in name:
            inspect = ["docker", "buildx", "imagetools", "inspect", name, "--format", "{{json .Manifest}}"]
            said = subprocess.run(inspect, stdout=subprocess.PIPE, text=True, check=True).stdout
            name = f"{name}@{json.loads(said)['digest']}"
        found.append(f"--build-arg {match['argument']}={name}")
    return found


def sbom(lock: list[Package], version: str) -> dict[str, Any]:
    """Return a CycloneDX 1.5 document."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "mrclab", "version": version}},
        "components": [
            {
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": f"pkg:pypi/{package.name}@{package.version}",
                "licenses": [{"license": {"name": CHOSEN.get(package.name, package.licence)}}],
            }
            for package in lock
        ],
    }


def main(words: list[str]) -> int:
    """Run the command that the first word names; return the exit code."""
    if words == ["images"]:
        try:
            print("\n".join(images(DOCKERFILE.read_text(encoding="utf-8"))))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"supply: images needs docker with buildx, and the registries ({error})", file=sys.stderr)
            return 3
        return 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = wanted(project)
    if words == ["lock"]:
        try:
            packages = sorted(installed(needs), key=lambda package: package.name)
        except PackageNotFoundError as error:
            print(f"supply: {error}: install mrclab[{','.join(EXTRAS)}] first", file=sys.stderr)
            return 3
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        head = f"# Python {version}, Linux. Written by tools/supply.py.\n"
        LOCK.write_text(head + "".join(f"{package.line()}\n" for package in packages), encoding="utf-8")
        return 0
    if words not in (["check"], ["sbom"]):
        print(__doc__, file=sys.stderr)
        return 2
    lock = read_lock(LOCK.read_text(encoding="utf-8"))
    if words == ["sbom"]:
        print(json.dumps(sbom(lock, project["version"]), indent=1))
        return 0
    found = faults(lock, needs)
    print("\n".join(found) or f"{len(lock)} packages, all allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
