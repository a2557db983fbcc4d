"""What an operator asks of an engine to look at it, and the answers; see ``messages``."""

from __future__ import annotations

import msgspec

PAGE_STATES = ".casp"
"""Of a page of the pool, a character each: free; cached, and given up when needed; active; shared
by several sequences; pinned, and held by none."""


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True, gc=False):
    """Say how all sequences and pages are; answered by ``Inspected``, between two steps."""

    number: int
    """The daemon's own, for the answer."""


class Browse(msgspec.Struct, tag="browse", array_like=True, frozen=True, gc=False):
    """Say which cached pages go on from one; answered by ``Browsed``."""

    number: int
    """The daemon's own, for the answer."""
    parent: int = -1
    """-1 for those that prompts begin with, or whose page before is cached no more."""
    limit: int = 200


Looking = Inspect | Browse


class PoolLook(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The pages of the pool."""

    pages_per_cell: int
    cells: bytes
    """Of ``PAGE_STATES``, a character a cell; of several pages the commonest."""
    owners: bytes
    """int32 place in ``tenants`` of each cell's first page of that state, -1 for nobody."""
    counts: list[int]
    """Pages in each of ``PAGE_STATES``; they add up to the pool."""
    tenants: list[str]
    """Those with most pages, held or cached."""
    tenant_pages: list[int]


class MachineLook(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the engine takes of its machine; None for what is not known, or not there."""

    resident_bytes: int | None = None
    """Of memory, that its process has."""
    cpu_seconds: float = 0.0
    """Of all its threads, since its start."""
    cpu_cores: float | None = None
    """Of these seconds in each second since the look before."""
    device_used: int | None = None
    """Bytes of the device that somebody has, also others."""
    device_total: int | None = None
    device_utilization: float | None = None
    """Share of the driver's last sample in which a kernel ran, 0 to 1."""


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True, gc=False):
    """How all is; columns over the sequences, int32 where nothing else is said."""

    number: int
    sequences: bytes
    """int64 ids of those that wait or run, shape ``[n]``."""
    computed: bytes
    """Tokens, of which the step has landed."""
    pages: bytes
    """That each holds, shared ones included; of waiting ones 0."""
    cached: bytes
    """Tokens of a waiting one that need not be computed; -1 for those that nobody asked about."""
    drafted: bytes
    """Tokens that were guessed for it."""
    accepted: bytes
    """Of these."""
    pool: PoolLook
    tiers: dict[str, int]
    """Pages in each KV tier, by its name."""
    machine: MachineLook = MachineLook()


class Browsed(msgspec.Struct, tag="browsed", array_like=True, frozen=True, gc=False):
    """Pages that go on from one, those first that most go on from; int32 columns, shape ``[n]``."""

    number: int
    pages: bytes
    depths: bytes
    """Pages before each."""
    counts: bytes
    """Tokens that each holds."""
    holders: bytes
    """Sequences that hold it now."""
    below: bytes
    """Pages that go on from it, all of them."""
    pinned: bytes
    """Whether it is pinned, 0 or 1."""
    hits: bytes
    """Requests that found it since it is known, each once, however many answers it has."""
    tenants: list[str]
    """Whose each is."""
    tokens: list[bytes]
    """int32 ids of each where they are kept: not of tenants."""
    more: int = 0
    """Beyond the limit."""


Looked = Inspected | Browsed
