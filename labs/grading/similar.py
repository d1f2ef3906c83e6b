"""How much code two hand-ins share that the skeleton does not have: fingerprints of normalized tokens.

Runs of tokens are compared, with names and numbers replaced by their kind; MOSS uses such fingerprints
(Schleimer, Wilkerson, Aiken 2003). So renamed variables, other comments and another layout change nothing. It
is a reason to look, not a verdict: short right solutions resemble each other.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterable, Mapping

_RUN = 12
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def fingerprint(texts: Iterable[str]) -> frozenset[int]:
    """Return the runs of tokens in Python texts, as hashes."""
    runs: set[int] = set()
    for text in texts:
        tokens = _tokens(text)
        runs |= {hash(tuple(tokens[at : at + _RUN])) for at in range(max(0, len(tokens) - _RUN + 1))}
    return frozenset(runs)


def _tokens(text: str) -> list[str]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _SKIPPED or (token.type == tokenize.STRING and token.string.startswith('"""')):
                continue
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                found.append("name")
            elif token.type in (tokenize.NUMBER, tokenize.STRING):
                found.append("value")
            else:
                found.append(token.string)
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass  # what could be read counts
    return found


def closest(prints: Mapping[str, frozenset[int]], skeleton: frozenset[int]) -> dict[str, tuple[str, float]]:
    """Return for each hand-in the most similar other one and the share of its own runs that it has, 0 to 1.

    Runs of the skeleton do not count. A hand-in with the skeleton's runs only resembles nobody.
    """
    own = {name: runs - skeleton for name, runs in prints.items()}
    found = {}
    for name, mine in own.items():
        best = ("", 0.0)
        for other, theirs in own.items():
            if other != name and mine and theirs:
                share = len(mine & theirs) / min(len(mine), len(theirs))
                best = max(best, (other, share), key=lambda pair: pair[1])
        found[name] = best
    return found
