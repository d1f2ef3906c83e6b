"""The map value of a parser value set."""

from __future__ import annotations

USED_BYTES = 8  # bytes before the fields of a member: 1 if there is one
PLACES_PER_FIELD = 3  # of each field: its mask, then the lowest and the highest value under it
