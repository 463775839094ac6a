"""A griffe extension: what docstrings write for people is not taken for Markdown.

A bare `>>>` would be a quotation, and a unit after a bracket, `E[O] [tok]`, a link.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ \t]*>>> .*(?:\n(?![ \t]*$).*)*(?:\n|\Z))+", re.MULTILINE)


def marked(text: str) -> str:
    """The text with each run of example lines in a fence, at its own indentation, and units that are no links."""

    def block(found: re.Match[str]) -> str:
        lines = found[0].rstrip("\n").split("\n")
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return "\n".join([f"{indent}```pycon", *lines, f"{indent}```", ""])

    return _EXAMPLE.sub(block, text.replace("] [", "] \\["))


class DoctestBlocks(griffe.Extension):
    """Rewrites the docstring of every object as it is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            obj.docstring.value = marked(obj.docstring.value)
