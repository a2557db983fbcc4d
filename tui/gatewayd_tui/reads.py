"""What the console asks for beside snapshots, when a screen shows it."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

import msgspec

from gatewayd.admin.wire import Explanation
from gatewayd_tui.client import Refused, Source

_LISTED = 50
FormT = TypeVar("FormT")


class Ended(msgspec.Struct, frozen=True):
    """A row of ``GET /admin/requests``."""

    id: str
    endpoint: str
    priority: str
    outcome: str
    arrived: float
    ms: float
    ttft_ms: float | None
    cause: str


class _EndedList(msgspec.Struct, frozen=True):
    requests: list[Ended]


async def requests(source: Source, order: str) -> list[Ended]:
    """The ``newest`` or the ``slowest`` of the requests that are kept.

    Raises:
        Lost, Refused: there is no such answer.
    """
    found = await source.call("GET", f"/admin/requests?order={order}&limit={_LISTED}")
    return _as(found, _EndedList).requests


async def explanation_of(source: Source, request: str) -> Explanation:
    """Where the time of a request went that has ended.

    Raises:
        Lost, Refused: it is not known, or has not ended.
    """
    found = await source.call("GET", f"/admin/requests/{quote(request, safe='')}")
    return _as(found, Explanation)


def _as(found: object, form: type[FormT]) -> FormT:
    try:
        return msgspec.convert(found, form)
    except msgspec.ValidationError as error:
        raise Refused(f"the daemon's answer is not understood: {error}") from error
