"""An executed notebook as a page: its text, its code, and what the code printed and drew."""

import base64
import html
import json
from typing import Any

Images = dict[str, bytes]


def page_of(name: str, text: str) -> tuple[str, Images]:
    """Return a notebook as Markdown, with its pictures by their file names."""
    images: Images = {}
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(f"```python\n{source}\n```")
            for output in cell["outputs"]:
                parts += _shown(output, name, images)
    return "\n\n".join(parts) + "\n", images


def _shown(output: dict[str, Any], name: str, images: Images) -> list[str]:
    if output["output_type"] == "stream":
        return [_block("".join(output["text"]))]
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}-{len(images) + 1}.png"
        images[file] = base64.b64decode("".join(data["image/png"]))
        described = "".join(data.get("text/plain", "a figure")).strip("<>")
        return [f"![{html.escape(described)}]({file})"]
    if "text/plain" in data:
        return [_block("".join(data["text/plain"]))]
    return []


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
