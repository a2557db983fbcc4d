"""MkDocs hooks: pages from the rest of the repository, and Markdown as GitHub reads it.

Documents link to files outside of ``docs/``. Markdown files among them become pages of the site,
below ``repository/``; other files are copied there; a folder is its README. Lists are indented as
Python-Markdown wants them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
_LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]+`")
_NOWHERE = "#"
"""Where a folder without a README leads."""
_ITEM = re.compile(r"( *)(?:[-*]|\d+\.) ")


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 - MkDocs' types
    """Add every file outside of docs/ that pages link to, and those that these link to."""
    waiting = [page.src_uri for page in files.documentation_pages()]
    while waiting:
        uri = waiting.pop()
        text = (ROOT / _source(uri)).read_text(encoding="utf-8")
        for link, _ in _LINK.findall(_FENCE.sub("", text)):
            target = _resolve(uri, link)
            if target is None or files.get_file_from_path(target) is not None:
                continue
            content = (ROOT / _source(target)).read_bytes()
            is_page = target.endswith(".md")
            files.append(
                File.generated(config, target, content=content.decode() if is_page else content)
            )
            if is_page:
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401 - MkDocs' types
    """Point links at the site's copies, and indent lists by four."""
    uri = page.file.src_uri
    parts = _FENCE.split(markdown)
    parts[::2] = [_lists(_links(part, uri)) for part in parts[::2]]
    return "".join(parts)


def _source(uri: str) -> str:
    """Path in the repository of a file of the site."""
    return uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"


def _resolve(uri: str, link: str) -> str | None:
    """What a link leads to, as a path in the site; None if that is no file of the repository."""
    if not link or re.match(r"\w+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_source(uri)), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    if not (ROOT / path).is_file():
        return None
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{FOLDER}/{path}"


def _links(text: str, uri: str) -> str:
    def moved(match: re.Match[str]) -> str:
        target = _resolve(uri, match[1])
        if target is not None:
            relative = posixpath.relpath(target, posixpath.dirname(uri) or ".")
            return f"]({relative}{match[2] or ''})"
        is_folder = match[1] and not re.match(r"\w+:", match[1])
        return f"]({_NOWHERE})" if is_folder else match[0]

    return _LINK.sub(moved, text)


def _lists(text: str) -> str:
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        item = _ITEM.match(line)
        if line.startswith("|"):
            # A pipe in code needs no backslash here, and would show it.
            line = _SPAN.sub(lambda span: span[0].replace("\\|", "|"), line)
        if item and lines and lines[-1].strip() and not _ITEM.match(lines[-1]):
            # Behind a paragraph an item begins a list only after a blank line.
            lines.append("")
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and not indent:
            in_list = bool(item) or (in_list and bool(lines) and bool(lines[-1].strip()))
        if in_list and indent >= 2:
            line = " " * (indent // 2 * 4) + line.lstrip(" ")
        lines.append(line)
    return "\n".join(lines)
