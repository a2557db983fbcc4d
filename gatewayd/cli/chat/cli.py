"""``gatewayd chat``: chat with a server in the terminal."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from gatewayd.cli.chat.conversation import Conversation, Settings
from gatewayd.cli.chat.terminal import Terminal, explain
from gatewayd.cli.client.api import ApiClient, ApiError


def chat(
    url: Annotated[
        str, typer.Option(help="Base URL of any OpenAI-compatible server.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None,
        typer.Option(help="Model to chat with. Default: the first that the server lists."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key, sent as a bearer token.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, max=2, help="Sampling temperature; 0 is greedy decoding. Default: the server's."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens per answer. Default: the server's."),
    ] = None,
) -> None:
    """Chat with a running server; each line piped to stdin is a user message."""
    try:
        name = model or asyncio.run(_first_model(url, api_key))
    except ApiError as error:
        typer.secho(explain(error, url), fg="red", err=True)
        raise typer.Exit(1) from None
    settings = Settings(url, name, api_key, temperature, max_tokens)
    raise typer.Exit(Terminal(Conversation(settings, system)).run())


async def _first_model(url: str, api_key: str | None) -> str:
    async with ApiClient(url, api_key=api_key, timeout_seconds=30) as client:
        return (await client.models())[0]
