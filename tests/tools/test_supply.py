"""Every installed package is listed, within the bounds of pyproject.toml, and has an allowed licence."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT
from tools import supply
from tools.supply import Package

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = supply.read_lock(supply.LOCK.read_text())


def test_the_lock_has_all_that_is_installed_and_no_licence_but_those_allowed() -> None:
    assert supply.faults(LOCK, supply.wanted(PROJECT)) == []
    assert len(LOCK) > 40
    large_or_for_developers = {"compiler", "dev", "docs", "scapy", "training"}
    assert {*PROJECT["optional-dependencies"]} - large_or_for_developers == {*supply.EXTRAS}


@pytest.mark.parametrize(
    ("package", "words"),
    [
        (Package("numpy", "1.0", "BSD-3-Clause"), "1.0 in the lock"),
        (Package("numpy", "2.0", "GPL-3.0-only"), "not among those allowed"),
        (Package("numpy", "2.0", "AGPLv3"), "not among those allowed"),
        (Package("numpy", "2.0", "GNU General Public License v2"), "not among those allowed"),
        (Package("numpy", "2.0", "unknown"), "not among those allowed"),
        (Package("other", "2.0", "MIT"), "not in the lock"),
    ],
)
def test_what_breaks_a_rule_is_named(package: Package, words: str) -> None:
    (fault,) = supply.faults([package], [Requirement("numpy>=1.26")])
    assert words in fault


def test_permissive_licences_are_allowed() -> None:
    terms = ("MIT License", "Apache-2.0 OR BSD-2-Clause", "MPL-2.0", "PSF-2.0", "LGPL-2.1 AND MIT")
    assert supply.faults([Package(f"p{n}", "1", term) for n, term in enumerate(terms)], []) == []


def test_the_bill_of_materials_has_each_package() -> None:
    bill = json.loads(json.dumps(supply.sbom(LOCK, "1.0")))
    assert bill["bomFormat"] == "CycloneDX"
    assert {part["name"] for part in bill["components"]} == {package.name for package in LOCK}
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])


DOCKER = """#!/bin/sh
[ "$1 $2 $3 $5 $6" = "buildx imagetools inspect --format {{json .Manifest}}" ] || exit 9
[ "$4" = lost:1 ] && { echo "lost:1: not found" >&2; exit 1; }
digest=$(printf %s "$4" | sha256sum | cut -c1-64)
printf '{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "sha256:%s"}' "$digest"
"""


def test_the_dockerfiles_images_are_named_by_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert supply.main(["images"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("=")[0] for line in lines] == [
        f"--build-arg {name}" for name in ("P4C_IMAGE", "BMV2_IMAGE", "BASE_IMAGE")
    ]
    digest = hashlib.sha256(b"ubuntu:24.04").hexdigest()
    assert lines[2] == f"--build-arg BASE_IMAGE=ubuntu:24.04@sha256:{digest}"
    assert supply.images("ARG BASE_IMAGE=a:1@sha256:00") == ["--build-arg BASE_IMAGE=a:1@sha256:00"]
    (tmp_path / "Dockerfile").write_text("ARG BASE_IMAGE=lost:1\n")
    monkeypatch.setattr(supply, "DOCKERFILE", tmp_path / "Dockerfile")
    assert supply.main(["images"]) == 3
    assert "images needs docker with buildx" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert supply.main(["images"]) == 3
