"""Operator requests to inspect an engine, and the answers; see ``messages``."""

from __future__ import annotations

import msgspec

PAGE_STATES = ".casp"
"""One character per state of a page: free; cached and evictable; active; shared by several
sequences; pinned and unreferenced."""


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True, gc=False):
    """Request the state of all sequences and pages; answered by ``Inspected``, between steps."""

    number: int
    """Number assigned by the daemon, echoed in the answer."""


class Browse(msgspec.Struct, tag="browse", array_like=True, frozen=True, gc=False):
    """Request the cached pages that continue a page; answered by ``Browsed``."""

    number: int
    """Number assigned by the daemon, echoed in the answer."""
    parent: int = -1
    """-1 for first pages of prompts, and pages whose predecessor is no longer cached."""
    limit: int = 200


Looking = Inspect | Browse


class PoolStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """State of the KV pool."""

    pages_per_cell: int
    cells: bytes
    """One character of ``PAGE_STATES`` per cell; the commonest state of several pages."""
    owners: bytes
    """int32 index into ``tenants`` of each cell's first page of that state, -1 for none."""
    counts: list[int]
    """Pages by ``PAGE_STATES``; they add up to the pool."""
    tenants: list[str]
    """Tenants with the most pages, held or cached."""
    tenant_pages: list[int]


class MachineStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Resource usage of an engine process; None for unknown or inapplicable values."""

    resident_bytes: int | None = None
    """Resident memory of the process."""
    cpu_seconds: float = 0.0
    """CPU time of all threads since the process started."""
    cpu_cores: float | None = None
    """CPU seconds per second since the previous measurement."""
    device_used: int | None = None
    """Bytes of device memory in use, by all processes."""
    device_total: int | None = None
    device_utilization: float | None = None
    """Share of the driver's last sample in which a kernel ran, 0 to 1."""


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True, gc=False):
    """State of an engine; columns over the sequences, int32 unless stated otherwise."""

    number: int
    sequences: bytes
    """int64 ids of waiting and running sequences, shape ``[n]``."""
    computed: bytes
    """Computed tokens, in-flight ones not included."""
    pages: bytes
    """Pages held by each sequence, shared ones included; 0 for waiting ones."""
    cached: bytes
    """Cached tokens of a waiting sequence; -1 where it was not looked up."""
    drafted: bytes
    """Draft tokens."""
    accepted: bytes
    """Accepted draft tokens."""
    pool: PoolStats
    tiers: dict[str, int]
    """Pages in each KV tier, by name."""
    machine: MachineStats = MachineStats()


class Browsed(msgspec.Struct, tag="browsed", array_like=True, frozen=True, gc=False):
    """Pages that continue a page, those with most descendants first; int32 columns ``[n]``."""

    number: int
    pages: bytes
    depths: bytes
    """Number of pages before each."""
    counts: bytes
    """Tokens in each."""
    holders: bytes
    """Reference count of each."""
    below: bytes
    """Number of descendants of each."""
    pinned: bytes
    """Whether each is pinned, 0 or 1."""
    hits: bytes
    """Requests that found it since it was cached, each once, however many sequences it has."""
    tenants: list[str]
    """Tenant of each."""
    tokens: list[bytes]
    """int32 token ids of each where they are recorded: not for tenants."""
    more: int = 0
    """Number of further pages beyond the limit."""


Looked = Inspected | Browsed
