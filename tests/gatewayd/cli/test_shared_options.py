"""Shared options: defined once for several commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from gatewayd.cli.shared_options import with_option_groups


@dataclass
class _Size:
    wide: Annotated[int, typer.Option("--wide")] = 1
    high: Annotated[int, typer.Option("--high")] = 2


def _shade(dark: Annotated[bool, typer.Option("--dark")] = False) -> str:
    if dark:
        raise typer.BadParameter("too dark")
    return "light"


@with_option_groups(size=_Size, shade=_shade)
def draw(
    name: Annotated[str, typer.Argument()],
    *,
    size: _Size,
    loud: Annotated[bool, typer.Option("--loud")] = False,
    shade: str,
) -> None:
    """Draw something."""
    typer.echo(f"{name} {size.wide}x{size.high} {loud} {shade}")


app = typer.Typer()
app.command()(draw)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("box", "box 1x2 False light"),
        ("--high 7 box --loud", "box 1x7 True light"),
    ],
)
def test_a_command_gets_what_is_made_of_them(typed: str, told: str) -> None:
    assert CliRunner().invoke(app, typed.split()).stdout.strip() == told


def test_what_makes_it_may_refuse() -> None:
    done = CliRunner().invoke(app, ["box", "--dark"])
    assert done.exit_code == 2
    assert "too dark" in done.stderr


def test_help_shows_them_in_the_place_of_the_parameter() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "Draw something." in text
    assert sorted(("--wide", "--high", "--loud", "--dark"), key=text.index) == [
        *("--wide", "--high", "--loud", "--dark")
    ]
