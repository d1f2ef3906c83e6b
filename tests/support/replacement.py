"""Replace one passage of a text, to put errors into sources and mistakes into labs."""


def replace_once(text: str, old: str, new: str) -> str:
    """Return the text with `old` replaced by `new`. Raise ValueError unless `old` occurs exactly once."""
    count = text.count(old)
    if count != 1:
        raise ValueError(f"{old!r} occurs {count} times")
    return text.replace(old, new)
