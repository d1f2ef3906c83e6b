"""Turn notebooks into pages of the documentation: Markdown with the stored outputs and pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their names in the Markdown.

    Tables keep their HTML; other outputs become blocks of text.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    pictures: dict[str, bytes] = {}
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts += _shown(output, path.stem, pictures)
    about = (
        f"The notebook is `docs/notebooks/{path.name}`; its outputs are stored in it by `tools/notebooks.py`."
    )
    return "\n\n".join([*parts, about]) + "\n", pictures


def _shown(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        picture = f"{name}-{len(pictures) + 1}.png"
        pictures[picture] = base64.b64decode(data["image/png"])
        yield f"![A picture that the cell above draws]({picture})"
    elif "text/html" in data:
        # A table may be wider than a phone's display.
        yield f'<div style="overflow-x: auto">\n{data["text/html"]}\n</div>'
    elif "text/plain" in data:
        yield f"```text\n{data['text/plain']}\n```"
    elif output.get("text"):
        yield f"```text\n{''.join(output['text']).rstrip()}\n```"
