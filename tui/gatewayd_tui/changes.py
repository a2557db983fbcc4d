"""Every change of a running daemon that the console can ask for, as the admin API has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

_ActionT = TypeVar("_ActionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Change:
    """One call.

    Attributes:
        title: what it does and to what, for people: ``cancel request r-1``.
        method, route, body: of the admin API.
        destroys: whether people are asked once more.
    """

    title: str
    method: str
    route: str
    body: object = None
    destroys: bool = False


def changing(action: _ActionT) -> _ActionT:
    """Mark an action of a screen that changes the daemon: ``--read-only`` hides and blocks it."""
    action.is_change = True  # type: ignore[attr-defined]
    return action


def cancel(request: str, owner: str = "") -> Change:
    """End a request."""
    title = f"cancel request {request}" + (f" of {owner}" if owner else "")
    return Change(title, "POST", _request(request, "cancel"), destroys=True)


def hold(request: str) -> Change:
    """Let a request make no progress."""
    return Change(f"hold request {request}", "POST", _request(request, "hold"))


def release(request: str) -> Change:
    """Let a held request go on."""
    return Change(f"release request {request}", "POST", _request(request, "release"))


def bump(request: str, priority: str | None = None) -> Change:
    """Put a request in front of its class, or into another class."""
    where = "to the front" if priority is None else f"to class {priority}"
    body = None if priority is None else {"priority": priority}
    return Change(f"bump request {request} {where}", "POST", _request(request, "bump"), body)


def pause(seconds: float | None = None) -> Change:
    """Take no new requests."""
    title = "pause admission: new requests are refused"
    return Change(title, "POST", "/admin/pause", {"seconds": seconds}, destroys=True)


def resume() -> Change:
    """Take new requests again."""
    return Change("resume admission", "POST", "/admin/resume")


def drain() -> Change:
    """Finish and stop."""
    title = "drain the daemon: it finishes its requests and stops"
    return Change(title, "POST", "/admin/drain", destroys=True)


def _request(request: str, verb: str) -> str:
    return f"/admin/requests/{quote(request, safe='')}/{verb}"
