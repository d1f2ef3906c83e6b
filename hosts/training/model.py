"""A transformer that predicts the next character: its sizes, its text, gradient and optimizer, in JAX.

All parameters are one vector of float32. A gradient is such a vector, too, and ranks sum gradients. The
transformer is built as in GPT-2 (layer norm before each part, GELU, learned positions). The optimizer is Adam
(Kingma and Ba, 2015).

JAX must return the same bits for the same input in every process of a machine. XLA distributes a sum over its
threads, and the rounding depends on that distribution. So only one thread computes. The compiled code also
depends on the CPU's instructions, so bits can be compared only between processes of one machine. JAX is
imported only when a model is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.linux.errors import MachineError
from mrclab.linux.system import environment

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the model and its training. The settings and the text determine every bit of the result."""

    layers: int
    width: int
    heads: int
    context: int
    """Number of earlier characters that a prediction may use."""
    batch: int
    """Number of sequences of ``context`` characters that each rank learns from in a step."""
    ranks: int
    seed: int
    learning_rate: float = 3e-3

    @classmethod
    def of(cls, params: Mapping[str, Any], ranks: int, seed: int) -> Settings:
        """Return the settings from a workload's parameters. Raise KeyError if a setting is missing."""
        own = [field.name for field in fields(cls) if field.name in params]
        return cls(**{name: params[name] for name in own}, ranks=ranks, seed=seed)


@dataclass(frozen=True, slots=True)
class Text:
    """A text as numbers, one for each character: its position in the sorted alphabet of the text."""

    tokens: Tokens
    alphabet: bytes

    @classmethod
    def shipped(cls) -> Text:
        """Return the training text that comes with the package."""
        data = np.frombuffer(files("mrclab.hosts.training").joinpath("text.txt").read_bytes(), np.uint8)
        alphabet, tokens = np.unique(data, return_inverse=True)
        return cls(tokens.astype(np.int32), alphabet.tobytes())


def batch_of(text: Text, settings: Settings, step: int, rank: int) -> Tokens:
    """Return a rank's training data for a step: ``batch`` rows of ``context + 1`` characters.

    The positions in the text depend only on seed, step and rank. So any process can compute the data of any
    rank.
    """
    chooser = np.random.default_rng((settings.seed, step, rank))
    starts = chooser.integers(0, len(text.tokens) - settings.context, settings.batch)
    rows: Tokens = text.tokens[starts[:, None] + np.arange(settings.context + 1)]
    return rows


NEEDED = ("jax", "jaxlib")
THREADS = "NPROC"
"""Environment variable with the number of threads of XLA's client. The default is a thread for each CPU."""


def require_jax() -> None:
    """Raise MachineError, with the remedy, if JAX is not installed."""
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise MachineError(f"training needs Python's '{missing}'", "pip install 'mrclab[training]'")


def load_jax() -> Any:
    """Import JAX and start its client, for the CPU and with one thread.

    Raise MachineError if JAX is not installed.
    """
    require_jax()
    with environment({THREADS: "1", "JAX_PLATFORMS": "cpu"}):
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.devices()  # starts JAX's client, which reads the environment only once
    return jax


Vector = npt.NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
FEED_FORWARD = 4
"""The width of the feed-forward part, divided by the width of the model."""
INITIAL_SPREAD = 0.02
DIGEST_WORDS = 4
"""Number of 64-bit words of a digest, which is SHA-256."""


def shapes_of(settings: Settings, alphabet: int) -> Shapes:
    """Return the shapes of the model's tensors by name, in their order in the vector."""
    width, inner = settings.width, FEED_FORWARD * settings.width
    shapes: Shapes = {"embedding": (alphabet, width), "position": (settings.context, width)}
    for layer in range(settings.layers):
        shapes |= {
            f"{layer}.norm1": (2, width),
            f"{layer}.attention": (width, 3 * width),
            f"{layer}.projection": (width, width),
            f"{layer}.norm2": (2, width),
            f"{layer}.up": (width, inner),
            f"{layer}.up_bias": (inner,),
            f"{layer}.down": (inner, width),
            f"{layer}.down_bias": (width,),
        }
    return shapes | {"norm": (2, width)}


def count_of(settings: Settings, alphabet: int) -> int:
    """Return the number of parameters."""
    return sum(math.prod(shape) for shape in shapes_of(settings, alphabet).values())


def initial(settings: Settings, shapes: Shapes) -> Vector:
    """Return the parameters before the first step: normally distributed; norms have scale 1, offset 0."""
    chooser = np.random.default_rng(settings.seed)
    parts = []
    for name, shape in shapes.items():
        if "norm" in name:
            parts.append(np.repeat([1.0, 0.0], settings.width))
        elif name.endswith("bias"):
            parts.append(np.zeros(math.prod(shape)))
        else:
            parts.append(chooser.normal(0, INITIAL_SPREAD, math.prod(shape)))
    return np.concatenate(parts).astype(np.float32)


class Model:
    """One replica: its parameters, and the functions that XLA compiled for it.

    Raise MachineError if JAX is not installed.
    """

    def __init__(self, settings: Settings, text: Text) -> None:
        self._settings = settings
        self._text = text
        self._start = initial(settings, shapes_of(settings, len(text.alphabet)))
        self.count = len(self._start)
        self._gradient, self._update = _functions(replace(settings, seed=0), len(text.alphabet))
        self._state: tuple[Any, ...] = ()
        self.restart()

    def restart(self) -> None:
        """Reset the parameters to their values before the first step."""
        self._state = (self._start, np.zeros_like(self._start), np.zeros_like(self._start))

    def compile(self) -> None:
        """Let XLA compile the functions, which takes seconds. Then reset the parameters."""
        _, gradient = self.gradient(0, 0)
        self.update(0, gradient)
        self.restart()

    def gradient(self, step: int, rank: int) -> tuple[float, Vector]:
        """Return the loss of a rank's batch (nats per character), and the gradient of this loss."""
        tokens: Tokens = batch_of(self._text, self._settings, step, rank)
        loss, gradient = self._gradient(self._state[0], tokens)
        return float(loss), np.asarray(gradient)

    def update(self, step: int, total: Vector) -> None:
        """Do a step of the optimizer. ``total`` is the sum of all ranks' gradients."""
        # Pass a copy, because JAX may keep the memory, and the caller overwrites ``total`` in the next step.
        self._state = self._update(*self._state, np.array(total), np.float32(step + 1))

    def digest(self) -> npt.NDArray[np.int64]:
        """Return the SHA-256 of all parameters' bits."""
        parameters = np.asarray(self._state[0])
        return np.frombuffer(hashlib.sha256(parameters.tobytes()).digest(), np.int64)


@cache
def _functions(settings: Settings, alphabet: int) -> tuple[Any, Any]:
    """Return the functions for the gradient and the optimizer. Replicas of a process share them."""
    jax = load_jax()
    loss = _loss(jax, settings, shapes_of(settings, alphabet))
    return jax.jit(jax.value_and_grad(loss)), jax.jit(_adam(jax, settings))


def _loss(jax: Any, settings: Settings, shapes: Shapes) -> Any:
    """Return the loss as a function of parameters and tokens: the mean cross-entropy."""
    jnp = jax.numpy
    heads, width, context = settings.heads, settings.width, settings.context
    hidden_from = jnp.asarray(np.triu(np.full((context, context), -1e9, np.float32), 1))

    def norm(x: Any, scale_and_offset: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        spread = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return centred * spread * scale_and_offset[0] + scale_and_offset[1]

    def attend(x: Any, weights: Any, projection: Any) -> Any:
        rows = x.shape[0]
        split = (x @ weights).reshape(rows, context, 3, heads, width // heads)
        queries, keys, values = (split[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        scores = queries @ keys.transpose(0, 1, 3, 2) / math.sqrt(width // heads) + hidden_from
        mixed = jax.nn.softmax(scores, -1) @ values
        return mixed.transpose(0, 2, 1, 3).reshape(rows, context, width) @ projection

    def loss(vector: Any, tokens: Any) -> Any:
        p, at = {}, 0
        for name, shape in shapes.items():
            p[name] = vector[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        x = p["embedding"][tokens[:, :-1]] + p["position"]
        for layer in range(settings.layers):
            x = x + attend(norm(x, p[f"{layer}.norm1"]), p[f"{layer}.attention"], p[f"{layer}.projection"])
            inner = norm(x, p[f"{layer}.norm2"]) @ p[f"{layer}.up"] + p[f"{layer}.up_bias"]
            x = x + jax.nn.gelu(inner) @ p[f"{layer}.down"] + p[f"{layer}.down_bias"]
        scores = norm(x, p["norm"]) @ p["embedding"].T
        likely = jax.nn.log_softmax(scores, -1)
        return -jnp.take_along_axis(likely, tokens[:, 1:, None], -1).mean()

    return loss


def _adam(jax: Any, settings: Settings) -> Any:
    jnp = jax.numpy

    def update(parameters: Any, mean: Any, square: Any, total: Any, number: Any) -> tuple[Any, Any, Any]:
        gradient = total / settings.ranks
        mean = BETA1 * mean + (1 - BETA1) * gradient
        square = BETA2 * square + (1 - BETA2) * gradient * gradient
        rate = settings.learning_rate * jnp.sqrt(1 - BETA2**number) / (1 - BETA1**number)
        return parameters - rate * mean / (jnp.sqrt(square) + EPSILON), mean, square

    return update
