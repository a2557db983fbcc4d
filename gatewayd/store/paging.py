"""A part of a table that is sorted by its id."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Select, Table


class Page(NamedTuple):
    """Which part.

    Attributes:
        after: the id before its first row, which need not exist any more; None from the beginning.
        limit: most rows.
        is_descending: the largest id first.
    """

    after: str | None
    limit: int
    is_descending: bool


def paged(query: Select[Any], table: Table, page: Page) -> Select[Any]:
    """Select a page, and one row more to tell whether it is the last.

    Args:
        query: what to select.
        table: with the column ``id``.
        page: which part of it.
    """
    if page.after is not None:
        beyond = table.c.id < page.after if page.is_descending else table.c.id > page.after
        query = query.where(beyond)
    order = table.c.id.desc() if page.is_descending else table.c.id
    return query.order_by(order).limit(page.limit + 1)
