"""Pagination of tables by id."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Select, Table


class Page(NamedTuple):
    """Parameters of a page.

    Attributes:
        after: id before its first row, which need not exist any more; None for the first page.
        limit: maximum rows.
        is_descending: whether rows are sorted by descending id.
    """

    after: str | None
    limit: int
    is_descending: bool


def paged(query: Select[Any], table: Table, page: Page) -> Select[Any]:
    """Select a page, plus one row that tells whether more follow.

    Args:
        query: the query to restrict.
        table: its table, with the column ``id``.
        page: the page.
    """
    # Pages continue after an id, not at an offset, which insertions and deletions would shift.
    if page.after is not None:
        beyond = table.c.id < page.after if page.is_descending else table.c.id > page.after
        query = query.where(beyond)
    order = table.c.id.desc() if page.is_descending else table.c.id
    return query.order_by(order).limit(page.limit + 1)
