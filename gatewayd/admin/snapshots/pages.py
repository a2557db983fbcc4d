"""Pages of a snapshot: KV pools and cached prefixes, as engines report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from gatewayd.admin.snapshots.requests import SequenceReport
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.text.printable import printable
from gatewayd.wire.snapshot import KvView, PrefixSummary, PrefixView
from gatewayd_engine.process.inspect_messages import Browsed, Inspected

_FIRST_OWNER, _NO_OWNER = ord("0"), ord(" ")
_MOST_CHARS = 80


def kv_view(engine: int, said: Inspected) -> KvView:
    """Build the view of an engine's KV pool."""
    pool = said.pool
    free, cached, active, shared, pinned = pool.counts
    # Requests without a tenant count as the default tenant's.
    tenants = [tenant or DEFAULT_TENANT for tenant in pool.tenants]
    names = list(dict.fromkeys(tenants))
    # Owner -1, of pages without one, indexes the -1 that is appended.
    places = np.array([names.index(tenant) for tenant in tenants] + [-1], np.int32)
    owners = places[np.frombuffer(pool.owners, np.int32)]
    # One character per cell, which keeps the JSON small: tenant n is ``chr(48 + n)``.
    letters = np.where(owners < 0, _NO_OWNER, owners + _FIRST_OWNER).astype("<u4")
    by_tenant: Counter[str] = Counter()
    for tenant, count in zip(tenants, pool.tenant_pages, strict=True):
        by_tenant[tenant] += count
    return KvView(
        engine=engine,
        pages_per_cell=pool.pages_per_cell,
        cells=pool.cells.decode("ascii"),
        owners=letters.tobytes().decode("utf-32-le"),
        tenants=names,
        free=free,
        cached=cached,
        active=active,
        shared=shared,
        pinned=pinned,
        by_tenant=dict(by_tenant),
        tiers=said.tiers,
    )


def sequence_reports(said: Iterable[Inspected]) -> dict[int, SequenceReport]:
    """Reports of engines on their sequences, by sequence id."""
    found: dict[int, SequenceReport] = {}
    for one in said:
        columns = (
            np.frombuffer(column, np.int32).tolist()
            for column in (one.computed, one.pages, one.cached, one.drafted, one.accepted)
        )
        ids = np.frombuffer(one.sequences, np.int64).tolist()
        found.update(zip(ids, map(_sequence_report, *columns), strict=True))
    return found


def _sequence_report(
    computed: int, pages: int, cached: int, drafted: int, accepted: int
) -> SequenceReport:
    return SequenceReport(computed, pages, None if cached < 0 else cached, drafted, accepted)


def prefixes_of(
    engine: int, parent: int | None, said: Browsed, text_of: Callable[[list[int]], str]
) -> PrefixSummary:
    """Build the view of a page's children in the prefix tree.

    Args:
        engine: index of the engine.
        parent: the page; None for first pages of prompts.
        said: the engine's answer.
        text_of: decodes tokens.
    """
    columns = (
        np.frombuffer(column, np.int32).tolist()
        for column in (
            *(said.pages, said.depths, said.counts, said.holders),
            *(said.below, said.pinned, said.hits),
        )
    )
    rows = [
        PrefixView(
            engine=engine,
            page=page,
            parent=parent,
            depth=depth,
            tokens=count,
            text=printable(text_of(np.frombuffer(tokens, np.int32).tolist()), _MOST_CHARS),
            tenant=tenant or DEFAULT_TENANT,
            holders=holders,
            hits=hits,
            is_pinned=bool(pinned),
            children=below,
        )
        for page, depth, count, holders, below, pinned, hits, tenant, tokens in zip(
            *columns, said.tenants, said.tokens, strict=True
        )
    ]
    return PrefixSummary(rows=rows, more=said.more)


def pages_by_tenant(views: Iterable[KvView]) -> Mapping[str, int]:
    """Pages of each tenant in all pools."""
    found: Counter[str] = Counter()
    for view in views:
        found.update(view.by_tenant)
    return found
