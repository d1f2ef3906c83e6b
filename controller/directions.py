"""Which way over a link: ``up`` is away from the hosts."""

from __future__ import annotations

from typing import Literal

Direction = Literal["both", "up", "down"]
DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")
