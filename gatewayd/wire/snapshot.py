"""One look at the whole daemon, as the admin API streams it and the console shows it.

``GET /admin/snapshot`` answers one; ``GET /admin/stream?interval=0.5`` sends one after the other as
server-sent events. A recording is a file of them, one JSON object a line.
"""

from __future__ import annotations

import msgspec

VERSION = 1
"""Of the form below; a console that knows another one says so."""

MOST_ROWS = 200
"""Of a table in a snapshot: what there is beyond is counted, not sent."""


class DaemonView(msgspec.Struct, frozen=True, kw_only=True):
    """The process.

    Attributes:
        version: of gatewayd.
        pid: of the daemon.
        url: where clients go.
        model: its name to clients.
        state: ``starting``, ``ready``, ``paused`` (admission), ``unloaded``, ``draining`` or
            ``failed``.
        uptime_seconds: since it began to listen.
        troubles: what nobody does anything about, a sentence each.
    """

    version: str
    pid: int
    url: str
    model: str
    state: str
    uptime_seconds: float
    troubles: list[str]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica; numbers as ``/metrics`` has them.

    Attributes:
        index: its number.
        state: a ``ReplicaState``.
        detail: progress while it starts, or why it failed.
        pid: of its process; None when there is none.
        uptime_seconds: since it became ready.
        restarts: engines lost so far.
        device: where it computes.
        dtype: of its weights.
        num_parameters: of the model.
        weight_bytes: that they take as they are computed with; 0 where it is not known.
        load_seconds: that it took to become ready.
        max_model_len: tokens of its context.
        max_running: rows of its batch.
        max_batch_tokens: budget of its steps.
        page_size: tokens of a page of the KV pool.
        num_pages: of the pool.
        free_pages, cached_pages, held_pages: they add up to ``num_pages``.
        page_bytes: of one page; 0 where it is not known.
        num_running, num_waiting: sequences.
        steps, computed_tokens, preemptions, faults: totals.
        prefix_queries, prefix_hits: prompt tokens looked up and found, totals.
        draft_tokens, accepted_tokens: of speculation, totals.
        step_tokens, step_seconds: of its last step.
        resident_bytes: of memory that its process has; None where it is not known, as below.
        cpu_cores: processors that it kept busy since the look before, a mean.
        device_used, device_total: bytes of a GPU, used by whomever; None on a CPU.
        device_utilization: share of time in which the GPU computes, 0 to 1.
    """

    index: int
    state: str
    detail: str
    pid: int | None
    uptime_seconds: float
    restarts: int
    device: str
    dtype: str
    num_parameters: int
    load_seconds: float
    max_model_len: int
    max_running: int
    max_batch_tokens: int
    page_size: int
    num_pages: int
    free_pages: int
    cached_pages: int
    held_pages: int
    page_bytes: int
    num_running: int
    num_waiting: int
    steps: int
    computed_tokens: int
    preemptions: int
    faults: int
    prefix_queries: int
    prefix_hits: int
    draft_tokens: int
    accepted_tokens: int
    step_tokens: int
    step_seconds: float
    resident_bytes: int | None = None
    cpu_cores: float | None = None
    device_used: int | None = None
    device_total: int | None = None
    device_utilization: float | None = None
    weight_bytes: int = 0


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds over the requests that ended within the last minute; None of none.

    Attributes:
        name: ``ttft``, ``tpot`` or ``e2e``.
        p50, p95, p99: of them.
        count: of the requests that have such a time.
    """

    name: str
    p50: float | None
    p95: float | None
    p99: float | None
    count: int


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """A request of which no choice runs, in the order in which they came.

    Attributes:
        id: the ``x-request-id`` that its client is told.
        tenant: whose it is; empty without tenants.
        priority: its class.
        engine: that has it; None while none is ready.
        age_ms: since it came.
        prompt_tokens: of its prompt.
        cached_tokens: of these that need not be computed, as the engine sees it now; None unknown.
        max_tokens: that each choice may generate.
        choices: that it wants.
        cause: what keeps it, a name of ``gatewayd.tracing.causes.CAUSES``.
        reason: the same as a sentence.
        slack_ms: until its first token is due; None without a deadline, negative when it is late.
        is_held: an operator holds it.
        request_id: the gateway's own: clients may send one ``x-request-id`` twice.
    """

    id: str
    tenant: str
    priority: str
    engine: int | None
    age_ms: float
    prompt_tokens: int
    cached_tokens: int | None
    max_tokens: int
    choices: int
    cause: str
    reason: str
    slack_ms: float | None
    is_held: bool
    request_id: str = ""


class RunningView(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that has a row of a batch.

    Attributes:
        id: the ``x-request-id`` of its request.
        choice: its place among the choices of the request.
        tenant, priority, engine: as for those that wait.
        age_ms: since the request came.
        phase: ``prefill``, ``decode`` or ``held`` back between two steps.
        cause: what its time is spent on now, a name of ``CAUSES``.
        prompt_tokens: of its prompt.
        cached_tokens: of these found in the cache.
        computed_tokens: of its sequence, prompt and answer.
        generated_tokens: so far.
        max_tokens: that it may generate.
        tokens_per_second: generated, since its first token.
        pages: of the KV pool that it holds, shared ones included.
        preemptions: how often it gave way.
        guided: whether it follows a grammar.
        accepted: drafts kept of those made for it; None where none were.
        request_id: as for those that wait.
    """

    id: str
    choice: int
    tenant: str
    priority: str
    engine: int
    age_ms: float
    phase: str
    cause: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    max_tokens: int
    tokens_per_second: float
    pages: int
    preemptions: int
    guided: bool
    accepted: float | None
    request_id: str = ""


class KvView(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of one engine's pool.

    Attributes:
        engine: its index.
        pages_per_cell: that one character of ``cells`` stands for; 1 unless there are too many.
        cells: a character a cell: ``.`` free, ``c`` cached and given up when needed, ``a`` active,
            ``s`` shared by several sequences, ``p`` pinned; of several pages the most common one.
        owners: beside each cell an index into ``tenants``, as a character from ``0`` on (``chr(48 +
            index)``), and a space for nobody.
        tenants: that hold pages or have cached ones.
        free, cached, active, shared, pinned: pages; they add up to the pool.
        by_tenant: pages held or cached for each.
        tiers: pages in each KV tier beyond the pool, by its name.
    """

    engine: int
    pages_per_cell: int
    cells: str
    owners: str
    tenants: list[str]
    free: int
    cached: int
    active: int
    shared: int
    pinned: int
    by_tenant: dict[str, int]
    tiers: dict[str, int]


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of one class, as ``/metrics`` has it.

    Attributes:
        priority: the class.
        slo: ``ttft``, ``tpot``, ``e2e``, or ``all`` of them.
        target_ms: what is promised; None for ``all``.
        objective: share of requests that must keep it.
        good, bad: requests so far.
        burn: rates by window: ``5m``, ``1h``, ``6h``.
    """

    priority: str
    slo: str
    target_ms: float | None
    objective: float
    good: int
    bad: int
    burn: dict[str, float]


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant uses now, beside what it may; None where nothing limits it.

    Attributes:
        tenant: its name.
        weight: beside others.
        running, waiting: requests here now.
        concurrency: that it may have at once.
        requests, requests_per_minute: within the last minute, and at most.
        tokens, tokens_per_minute: the same for tokens.
        used_tokens, most_tokens: of its budget, settled.
        reserved_tokens: for requests that are not settled.
        used_micros, most_micros: of its budget in millionths of money.
        pages: of the KV pools, held or cached.
        kept_bytes, store_bytes: in the store, and the limit that was set for it.
    """

    tenant: str
    weight: float
    running: int
    waiting: int
    concurrency: int | None
    requests: int
    requests_per_minute: int | None
    tokens: int
    tokens_per_minute: int | None
    used_tokens: int
    most_tokens: int | None
    reserved_tokens: int
    used_micros: int
    most_micros: int | None
    pages: int
    kept_bytes: int = 0
    store_bytes: int | None = None


class StrategyView(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy, its state and its cost.

    Attributes:
        engine: its index; ``none`` for those of the daemon.
        kind, name: of the plugin.
        state: ``active``, ``quarantined`` or ``replaced``.
        faults, calls: so far.
        mean_us, longest_us: of a call.
    """

    engine: str
    kind: str
    name: str
    state: str
    faults: int
    calls: int
    mean_us: float
    longest_us: float


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the daemon's log.

    Attributes:
        number: it grows by one with each line.
        unix: when.
        level: ``debug`` to ``critical``.
        source: the logger.
        message: what it says.
        request_id: of whom it speaks, the gateway's own; empty for nobody.
        x_request_id: what that request's client was told; empty where nobody knows.
    """

    number: int
    unix: float
    level: str
    source: str
    message: str
    request_id: str = ""
    x_request_id: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one instant.

    Attributes:
        version: of the form.
        number: counts those that were made.
        unix: when.
        daemon, engines, latencies, waiting, running, kv, slo, tenants, strategies: see there.
        more_waiting, more_running, more_tenants: rows beyond ``MOST_ROWS``.
        limits: that can be changed, by name.
        samples: of ``/metrics``, by what stands before the value there; without buckets of
            histograms.
        samples_unix: the instant of ``samples`` and ``slo``: in a stream up to a second before
            the rest. 0 in recordings of daemons that did not tell: that of the rest.
        logs: of a stream, the lines since its snapshot before; of a single one, the last 200.
    """

    version: int = VERSION
    number: int
    unix: float
    daemon: DaemonView
    engines: list[EngineView]
    latencies: list[LatencyView]
    waiting: list[WaitingView]
    more_waiting: int
    running: list[RunningView]
    more_running: int
    kv: list[KvView]
    slo: list[SloView]
    tenants: list[TenantView]
    more_tenants: int = 0
    strategies: list[StrategyView]
    limits: dict[str, float]
    samples: dict[str, float]
    samples_unix: float = 0.0
    logs: list[LogView]


class PrefixView(msgspec.Struct, frozen=True, kw_only=True):
    """A page in the tree of cached prefixes, ``GET /admin/prefixes``.

    Attributes:
        engine: its index.
        page: its number there.
        parent: the page before it; None for the beginning of prompts.
        depth: pages before it.
        tokens: that it holds.
        text: how it begins, decoded, at most 80 characters; empty where the tenant's text is not
            shown.
        tenant: whose prompts it serves.
        holders: sequences that hold it now.
        hits: requests that found it since it is cached, each once.
        is_pinned: an operator pins it.
        children: pages behind it, everything below included.
    """

    engine: int
    page: int
    parent: int | None
    depth: int
    tokens: int
    text: str
    tenant: str
    holders: int
    hits: int
    is_pinned: bool
    children: int


class PrefixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /admin/prefixes?engine=0&parent=&limit=200``: the children of a page.

    Attributes:
        rows: the largest first.
        more: rows beyond the limit.
    """

    rows: list[PrefixView]
    more: int
