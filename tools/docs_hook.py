"""A hook of mkdocs: the reference of the command line, and links that leave docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from hedgerow.cli.app import app

MARK, GUIDE = "<!-- commands -->", "<!-- contributing -->"
ROOT = Path(__file__).parents[1]


LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Writes a section for each command at the mark, and links as the site has them."""
    if MARK in markdown:
        markdown = markdown.replace(MARK, "\n".join(_commands()))
    if GUIDE in markdown:
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        markdown = markdown.replace(GUIDE, text.split("\n", 1)[1])
    folder = dirname(page.file.src_uri)
    return LINK.sub(lambda link: _on_site(link, folder), markdown)


def _on_site(link: re.Match[str], folder: str) -> str:
    """A file outside docs/ is named, not linked: the site does not have it."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if target.startswith("docs/"):  # in CONTRIBUTING.md, which the site includes
        return f"[{text}]({target.removeprefix('docs/')}{anchor})"
    path = normpath(f"{folder}/{target}" if folder else target)
    return f"{text} (`{path.removeprefix('../')}`)" if path.startswith("../") else link[0]


def _commands() -> Iterator[str]:
    command = typer.main.get_command(app)
    with typer.Context(command, info_name="hedgerow") as context:
        yield from _section(command, context)


def _section(command: Any, context: Any) -> Iterator[str]:
    yield f"## {context.command_path}\n"
    yield f"{_plain(command.help or '')}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```console\n$ {context.command_path} {usage}\n```\n"
    rows = [found for p in command.get_params(context) if (found := p.get_help_record(context))]
    if rows:
        yield "| option | meaning |\n|---|---|"
        for names, text in rows:
            cells = (f"<code>{_plain(names)}</code>", _plain(text))
            yield (
                "| " + " | ".join(c.replace("|", "&#124;").replace("\n", " ") for c in cells) + " |"
            )
        yield ""
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                with typer.Context(inner, info_name=name, parent=context) as below:
                    yield from _section(inner, below)


def _plain(text: str) -> str:
    return text.replace("\b", "").replace("<", "&lt;").strip()


def _cell(text: str) -> str:
    return _plain(text).replace("|", "&#124;").replace("\n", " ")
