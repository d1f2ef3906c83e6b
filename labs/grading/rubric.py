"""The points for each answer, for instructors."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from mrclab.labs.catalogue import part_of
from mrclab.labs.model import Lab
from mrclab.linux.errors import InputError

NAME = "rubric.yaml"


def rubric_of(lab: Lab) -> Mapping[str, tuple[str, ...]]:
    """Return the criteria of each question, a point each; none if only the students' files are here."""
    try:
        text = part_of(lab, NAME).read_text(encoding="utf-8")
    except InputError:
        return {}
    return {str(number): tuple(lines) for number, lines in yaml.safe_load(text).items()}
