"""Lazy loading of commands, whose modules are imported when they run."""

from __future__ import annotations

import gc
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import typer
import typer.core
import typer.main

from gatewayd.cli import third_party


class LazyCommand(NamedTuple):
    """Location of a command: a function with typer's annotations, or a ``typer.Typer``."""

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "serve": LazyCommand("gatewayd.cli.serve", "app", "Serve a model over the OpenAI API."),
    "init": LazyCommand("gatewayd.cli.init", "init", "Create a configuration file and an API key."),
    "install": LazyCommand(
        "gatewayd.cli.install", "install", "Install the daemon as a systemd service."
    ),
    "chat": LazyCommand("gatewayd.cli.chat.cli", "chat", "Chat with a running server."),
    "bench": LazyCommand(
        "gatewayd.cli.bench.app", "app", "Benchmark a server, or the engine of this machine."
    ),
    "plugin": LazyCommand("gatewayd.cli.plugins", "app", "List, create, test and check plugins."),
    "strategies": LazyCommand(
        "gatewayd.cli.operate.swap", "strategies", "Show the strategies of a running daemon."
    ),
    "swap": LazyCommand(
        "gatewayd.cli.operate.swap", "swap", "Replace a strategy of a running daemon."
    ),
    "explain": LazyCommand(
        "gatewayd.cli.operate.explain", "explain", "Break down the latency of a request."
    ),
    "request": LazyCommand(
        "gatewayd.cli.operate.request",
        "app",
        "Cancel, hold, release or reprioritize a running request.",
    ),
    "pause": LazyCommand(
        "gatewayd.cli.operate.admission", "pause", "Pause admission: refuse new requests."
    ),
    "resume": LazyCommand(
        "gatewayd.cli.operate.admission", "resume", "Resume admission of new requests."
    ),
    "drain": LazyCommand(
        "gatewayd.cli.operate.admission", "drain", "Finish running requests, then stop the daemon."
    ),
    "model": LazyCommand(
        "gatewayd.cli.operate.model", "app", "Fetch, list, delete, load and unload models."
    ),
    "prefix": LazyCommand(
        "gatewayd.cli.operate.prefix", "app", "Evict pages from the prefix cache."
    ),
    "pin": LazyCommand("gatewayd.cli.operate.pin", "pin", "Pin a prompt in the prefix cache."),
    "tenant": LazyCommand(
        "gatewayd.cli.tenants.tenant", "app", "Manage tenants, their limits and budgets."
    ),
    "key": LazyCommand(
        "gatewayd.cli.tenants.key", "app", "Create, list, rotate and revoke API keys."
    ),
    "price": LazyCommand("gatewayd.cli.tenants.price", "app", "Set prices per million tokens."),
    "usage": LazyCommand(
        "gatewayd.cli.tenants.usage", "usage", "Report usage by tenant, key or model."
    ),
    "audit": LazyCommand(
        "gatewayd.cli.tenants.usage", "audit", "Show the audit log and verify it."
    ),
    "spec": LazyCommand(
        "gatewayd.cli.spec", "app", "Estimate the speedup of speculative decoding."
    ),
    "quality": LazyCommand(
        "gatewayd.cli.quality.command", "quality", "Measure the accuracy cost of quantization."
    ),
    "quantize": LazyCommand(
        "gatewayd.cli.quantize", "quantize", "Write a calibrated, quantized checkpoint."
    ),
    "warmup": LazyCommand(
        "gatewayd.cli.warmup.command", "warmup", "Compile and tune GPU kernels ahead of time."
    ),
    "doctor": LazyCommand(
        "gatewayd.cli.doctor.command", "doctor", "Check this machine and the configuration."
    ),
    "watermark": LazyCommand("gatewayd.cli.watermark", "app", "Detect the watermark in a text."),
    "store": LazyCommand("gatewayd.cli.store", "app", "Show, upgrade or back up the store."),
    "config": LazyCommand("gatewayd.cli.config", "app", "Show or check the configuration."),
}
ALSO = {"plugins": "plugin", "db": "store"}
"""Aliases: a plural that users tend to type, and a former name."""


class LazyGroup(typer.core.TyperGroup):
    """Group that lists ``COMMANDS`` and third-party commands without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        """Return command names in order of first use, third-party ones last."""
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - click's types
        """Return a placeholder with the command's summary; None if there is no such command."""
        name = ALSO.get(cmd_name, cmd_name)
        found = COMMANDS.get(name) or all_commands().get(name)
        return None if found is None else typer.core.TyperCommand(name, help=found.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's types
        """Resolve and import the command to run."""
        name, command, rest = super().resolve_command(ctx, args)
        name = ALSO.get(name or "", name)
        return name, load(name) if command is not None and name else command, rest


@cache
def all_commands() -> dict[str, LazyCommand]:
    """Return ``COMMANDS`` and third-party commands with other names, in that order."""
    others = {
        name: LazyCommand(point.module, point.attr, third_party.summary(point))
        for name, point in third_party.commands().items()
        if name not in COMMANDS
    }
    return COMMANDS | others


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection during imports, where it finds nothing and costs 20 % of time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load(name: str) -> Any:  # noqa: ANN401 - click's command
    """Import a command; exit with an error if a third-party one is broken."""
    if name in COMMANDS:
        return _load(name, COMMANDS[name])
    # An exception of the project's own commands is a bug and propagates, with its traceback.
    lazy = all_commands()[name]
    try:
        return _load(name, lazy)
    except Exception as error:
        where = f"{lazy.module}:{lazy.attribute}"
        why = f"{type(error).__name__}: {error}"
        typer.secho(f"gatewayd: the command {name} ({where}) is broken: {why}", fg="red", err=True)
        raise typer.Exit(1) from error


def _load(name: str, lazy: LazyCommand) -> Any:  # noqa: ANN401 - click's command
    with gc_paused():
        found = getattr(importlib.import_module(lazy.module), lazy.attribute)
    if not isinstance(found, typer.Typer):
        # A function becomes a command as the only one of an app.
        function, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    _unwrap(command)
    return command


def _unwrap(command: Any) -> None:  # noqa: ANN401 - click's command
    """Join the lines of each paragraph of a help text, recursively, so that terminals wrap it."""
    if command.help:
        paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help))
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for other in getattr(command, "commands", {}).values():
        _unwrap(other)
