"""Texts with one passage replaced: breaks of the sources, mistakes of the labs."""


def replace_once(text: str, old: str, new: str) -> str:
    """Return the text with `new` in the place of `old`; raise ValueError unless that occurs exactly once."""
    count = text.count(old)
    if count != 1:
        raise ValueError(f"{old!r} occurs {count} times")
    return text.replace(old, new)
