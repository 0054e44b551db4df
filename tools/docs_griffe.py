"""An extension of griffe: examples in docstrings (`>>>`) become code blocks of the site."""

from __future__ import annotations

from typing import Any

import griffe


class FencedExamples(griffe.Extension):
    """Puts a fence around each paragraph of a docstring that starts with `>>>`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around each example.

    >>> fenced("Sum.\\n\\n>>> 1 + 1\\n2")
    'Sum.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    paragraphs = text.split("\n\n")
    for i, paragraph in enumerate(paragraphs):
        if paragraph.lstrip().startswith(">>> "):
            paragraphs[i] = f"```pycon\n{paragraph}\n```"
    return "\n\n".join(paragraphs)
