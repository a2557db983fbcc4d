"""Generator of the tables in docs/vllm-options.md.

``python -m gatewayd.cli.vllm.page docs/vllm-options.md`` regenerates them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gatewayd.cli.vllm.conversions import Only
from gatewayd.cli.vllm.option import Treatment, VllmOption
from gatewayd.cli.vllm.table import REVISION, SECTIONS

_BEGIN, _END = "<!-- options -->\n", "<!-- end -->"


def rewrite(text: str) -> str:
    """Replace the tables between the markers of a page.

    Raises:
        ValueError: a marker is missing.
    """
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError("the page has no markers for options")
    body = "\n\n".join("\n".join(_section(title, rows)) for title, rows in SECTIONS.items())
    return f"{head}{begin}\n{body}\n\n{end}{tail}"


def _section(title: str, rows: tuple[VllmOption, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| option of vLLM | treatment | meaning |"
    yield "| --- | --- | --- |"
    for row in rows:
        options = "<br>".join(f"`{spelling}`" for spelling in row.spellings)
        yield f"| {options} | {row.treatment}{_keys(row)} | {row.meaning} |"


def _keys(row: VllmOption) -> str:
    if isinstance(row.convert, Only):
        return " for " + ", ".join(f"`{value}`" for value in row.convert.values)
    keys = [key for key in row.convert.keys if key != REVISION]
    if row.treatment is not Treatment.MAPPED or row.part or not keys:
        return ""
    return ": " + ", ".join(f"`{key}`" for key in keys)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
