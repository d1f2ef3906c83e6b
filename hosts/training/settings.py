"""The size of the model and of its batches, and the text that it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the parameters after a number of steps, besides the text."""

    layers: int
    width: int
    heads: int
    context: int
    """Characters that a prediction may look back at."""
    batch: int
    """Sequences of ``context`` characters that each rank learns from in a step."""
    ranks: int
    seed: int
    learning_rate: float = 3e-3

    @classmethod
    def of(cls, params: Mapping[str, Any], ranks: int, seed: int) -> Settings:
        """Take the settings out of a workload's parameters. Raise KeyError if one is missing."""
        own = [field.name for field in fields(cls) if field.name in params]
        return cls(**{name: params[name] for name in own}, ranks=ranks, seed=seed)


@dataclass(frozen=True, slots=True)
class Text:
    """A text as numbers, one for each character: the place in the text's sorted alphabet."""

    tokens: Tokens
    alphabet: bytes

    @classmethod
    def shipped(cls) -> Text:
        """Return the text that comes with the package."""
        data = np.frombuffer(files("mrclab.hosts.training").joinpath("text.txt").read_bytes(), np.uint8)
        alphabet, tokens = np.unique(data, return_inverse=True)
        return cls(tokens.astype(np.int32), alphabet.tobytes())


def batch_of(text: Text, settings: Settings, step: int, rank: int) -> Tokens:
    """Return a rank's training data for a step: ``batch`` rows of ``context + 1`` characters.

    The places in the text are drawn by seed, step and rank alone: every rank can be computed anywhere.
    """
    chooser = np.random.default_rng((settings.seed, step, rank))
    starts = chooser.integers(0, len(text.tokens) - settings.context, settings.batch)
    rows: Tokens = text.tokens[starts[:, None] + np.arange(settings.context + 1)]
    return rows
