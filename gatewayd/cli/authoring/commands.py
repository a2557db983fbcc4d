"""Generator of the command reference in docs/cli.md.

``python -m gatewayd.cli.authoring.commands docs/cli.md`` regenerates it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatewayd.cli import third_party
from gatewayd.cli.lazy import COMMANDS, load

_BEGIN, _END = "<!-- commands -->\n", "<!-- end -->"
_COMPLETION = {"--install-completion", "--show-completion"}
"""Options that typer adds to every group; they are not documented."""
_PLACEHOLDERS = {int: "N", float: "X", Path: "PATH"}


def names() -> list[str]:
    """Return the commands of this distribution, including the console's entry point."""
    own = [
        name
        for name, point in third_party.commands().items()
        if point.dist is not None and point.dist.name == "gatewayd" and name not in COMMANDS
    ]
    return [*COMMANDS, *own]


def rewrite(text: str) -> str:
    """Replace the reference between the markers of a page.

    Raises:
        ValueError: a marker is missing.
    """
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError("the page has no markers for commands")
    body = "\n\n".join(part for name in names() for part in _parts(load(name), f"gatewayd {name}"))
    return f"{head}{begin}\n{body}\n\n{end}{tail}"


def _parts(command: Any, name: str, depth: int = 3) -> Iterator[str]:  # noqa: ANN401 - click's command
    """Yield the section of a command and, one level below, those of its subcommands."""
    yield f"{'#' * depth} `{name}`"
    if command.help:
        yield _plain(command.help)
    rows = [_row(each) for each in command.params if not _COMPLETION & set(each.opts)]
    if rows:
        yield "\n".join(["| parameter | default | meaning |", "| --- | --- | --- |", *rows])
    for sub in getattr(command, "commands", {}).values():
        yield from _parts(sub, f"{name} {sub.name}", depth + 1)


def _row(parameter: Any) -> str:  # noqa: ANN401 - click's parameter
    if parameter.param_type_name == "argument":
        written = parameter.metavar or parameter.name.upper()
    else:
        written = " / ".join((*parameter.opts, *parameter.secondary_opts))
        if not parameter.is_flag and not parameter.secondary_opts:
            written += f" {parameter.metavar or _values(parameter)}"
    default = _default(parameter.default)
    shown = f"`{_cell(default)}`" if default else ""
    return f"| `{_cell(written)}` | {shown} | {_cell(_plain(parameter.help or ''))} |"


def _values(parameter: Any) -> str:  # noqa: ANN401 - click's parameter
    """Return the placeholder for an option's value if it has no metavar."""
    kind = parameter.type_descriptor
    if kind.choices:
        return "|".join(str(getattr(each, "value", each)) for each in kind.choices)
    return _PLACEHOLDERS.get(kind.annotation, "TEXT")


def _default(value: Any) -> str:  # noqa: ANN401 - whatever an option holds
    """Format a default value as on the command line; empty if there is none."""
    if value is None or value is False or value in ("", []):
        return ""
    if value is True:
        return "yes"
    return str(value.value if isinstance(value, enum.Enum) else value)


def _plain(text: str) -> str:
    """Remove the escapes of terminal markup from a help text."""
    return text.replace("\\[", "[").replace("\b", "").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
