"""A panel with the crowd in the queue, and an action that thins it out."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd_hooks.console import Action, AdminCalls, Look, Panel, Refused, Rows
from gatewayd_hooks.markers import hookimpl

from gatewayd_console_crowd.crowd import Group, groups


@hookimpl
def gatewayd_console_panels() -> Sequence[Panel]:
    """Add the crowd."""
    return [Panel("crowd", "Who crowds the queue", _crowd, key="f6")]


@hookimpl
def gatewayd_console_actions() -> Sequence[Action]:
    """Add thinning."""
    return [Action("thin", "Cancel what the largest crowd waits for", _thin, is_destructive=True)]


def _crowd(look: Look) -> Rows:
    columns = ["tenant", "requests", "prompt tokens", "waited s"]
    return Rows(columns, [_row(group) for group in groups(look)])


def _row(group: Group) -> list[object]:
    seconds = f"{group.waited_ms / 1000:.1f}"
    return [group.tenant or "(nobody)", len(group.requests), group.prompt_tokens, seconds]


def _thin(admin: AdminCalls) -> str:
    found = groups(admin.call("GET", "/admin/snapshot"))
    if not found:
        return "nobody waits"
    largest = max(found, key=lambda group: len(group.requests))
    cancelled, last = 0, ""
    for request in largest.requests:
        try:
            admin.call("POST", f"/admin/requests/{request}/cancel")
        except Refused as refusal:
            last = str(refusal)  # it may run by now, or have ended
        else:
            cancelled += 1
    said = f"{cancelled} waiting requests of {largest.tenant or 'nobody'} are cancelled"
    return f"{said}; {len(largest.requests) - cancelled} are not: {last}" if last else said
