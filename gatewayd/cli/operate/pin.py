"""``gatewayd pin``: pin a prompt in the prefix cache of a running daemon."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gatewayd.cli.common import ConfigFile, fail
from gatewayd.cli.durations import seconds_of
from gatewayd.cli.operate.swap import Model, Socket, call_admin


def pin(
    text: Annotated[
        str | None, typer.Argument(help="Prompt prefix to pin; - reads it from stdin.")
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="How long to pin it, such as 90s, 10m, 2h or 1d."
        ),
    ] = "10m",
    off: Annotated[
        bool, typer.Option("--off", help="Unpin this prompt; without TEXT, unpin all.")
    ] = False,
    system: Annotated[
        bool, typer.Option("--system", help="Treat TEXT as the system message of chats.")
    ] = False,
    model: Model = None,
    config: ConfigFile = None,
    socket: Socket = None,
) -> None:
    """Pin the cached pages of a prompt: for a time they are evicted last."""
    if text is None and not off:
        fail("give the text to pin, or --off", 2)
    if text == "-":
        text = sys.stdin.read()
    body: dict[str, Any] = {"seconds": 0 if off else seconds_of("--for", time)}
    if text is not None and system:
        body["messages"] = [{"role": "system", "content": text}]
    elif text is not None:
        body["prompt"] = text
    answer = call_admin(config, socket, "PUT", "/admin/pins", body, model=model)
    if off:
        typer.echo("no longer pinned")
        return
    for engine, tokens in answer["pinned_tokens"].items():
        typer.echo(f"engine {engine}: {tokens} of {answer['prompt_tokens']} tokens are pinned")
