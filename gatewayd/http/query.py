"""Query parameters of list endpoints: ``after``, ``limit`` and ``order``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import Scope
from gatewayd.store.paging import Page


def query_of(scope: Scope) -> dict[str, str]:
    """Parse the query string; the last of repeated names wins."""
    text = scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=64))
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from None


def page_of(query: Mapping[str, str], *, default: int, most: int) -> Page:
    """Return the requested page of a list.

    Raises:
        InvalidRequest: the limit or the order is invalid.
    """
    limit = query.get("limit", str(default))
    # `isdigit` also accepts digits of other scripts.
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= most):
        raise InvalidRequest(f"limit is {limit[:32]!r}; it must be from 1 to {most}", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order[:32]!r}; it must be asc or desc", param="order")
    return Page(query.get("after") or None, int(limit), order == "desc")


def listed(found: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """Build OpenAI's list object.

    Args:
        found: rows of the page, plus one more if further pages exist.
        page: the requested page.
    """
    shown = found[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(found) > page.limit,
    }
