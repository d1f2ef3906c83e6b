"""The map value of a parser value set."""

from __future__ import annotations

_USED = 8  # bytes before the fields of a member: 1 if there is one
_PLACES = 3  # of each field: its mask, then the lowest and the highest value under it
