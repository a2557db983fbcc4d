"""Snapshot of the whole daemon, as the admin API streams it and the console shows it.

``GET /admin/snapshot`` returns one; ``GET /admin/stream?interval=0.5`` streams them as server-sent
events. A recording is a file of snapshots, one JSON object per line.
"""

from __future__ import annotations

import msgspec

VERSION = 1
"""Version of the format below; a console reports a version that it does not know."""

MOST_ROWS = 200
"""Maximum rows of each table in a snapshot: further rows are counted, not sent."""


class DaemonView(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon process.

    Attributes:
        version: version of gatewayd.
        pid: process id of the daemon.
        url: base URL for clients.
        model: name of the model for clients that this snapshot is about.
        models: names of all models.
        state: ``starting``, ``ready``, ``paused`` (admission), ``unloaded``, ``draining`` or
            ``failed``.
        uptime_seconds: since it began to listen.
        troubles: unresolved problems, a sentence each.
    """

    version: str
    pid: int
    url: str
    model: str
    models: list[str] = []
    state: str
    uptime_seconds: float
    troubles: list[str]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica; numbers as in ``/metrics``.

    Attributes:
        index: its number.
        state: a ``ReplicaState``.
        detail: progress while it starts, or the reason of its failure.
        pid: id of its process; None without one.
        uptime_seconds: since it became ready.
        restarts: number of engines lost so far.
        device: its device.
        dtype: data type of its weights.
        num_parameters: parameters of the model.
        weight_bytes: memory of the weights, as quantized for computing; 0 if unknown.
        load_seconds: time until it became ready.
        max_model_len: context length in tokens.
        max_running: maximum sequences in its batch.
        max_batch_tokens: maximum tokens of a step.
        page_size: tokens per page of the KV pool.
        num_pages: pages of the pool.
        free_pages, cached_pages, held_pages: their sum is ``num_pages``.
        page_bytes: bytes per page; 0 if unknown.
        num_running, num_waiting: numbers of sequences.
        steps, computed_tokens, preemptions, faults: totals.
        prefix_queries, prefix_hits: prompt tokens looked up and found in the prefix cache, totals.
        draft_tokens, accepted_tokens: of speculative decoding, totals.
        step_tokens, step_seconds: of its last step.
        resident_bytes: resident memory of its process; None if unknown, as below.
        cpu_cores: mean number of busy processor cores since the last inspection.
        device_used, device_total: bytes of the GPU, used by all processes; None on a CPU.
        device_utilization: utilization of the GPU, 0 to 1.
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
    # Fields with defaults may be missing in older recordings, which can still be opened.
    resident_bytes: int | None = None
    cpu_cores: float | None = None
    device_used: int | None = None
    device_total: int | None = None
    device_utilization: float | None = None
    weight_bytes: int = 0


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Latency quantiles of requests that ended within the last minute, milliseconds; None of none.

    Attributes:
        name: ``ttft``, ``tpot`` or ``e2e``.
        p50, p95, p99: quantiles.
        count: number of requests with this latency.
    """

    name: str
    p50: float | None
    p95: float | None
    p99: float | None
    count: int


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """A request without running choices; in order of arrival.

    Attributes:
        id: the ``x-request-id`` that its client receives.
        tenant: its tenant; empty without tenants.
        priority: its priority class.
        engine: its engine; None while none is ready.
        age_ms: since its arrival.
        prompt_tokens: tokens of its prompt.
        cached_tokens: cached prompt tokens, as the engine sees it now; None if unknown.
        max_tokens: maximum generated tokens of each choice.
        choices: number of its choices.
        cause: why it waits, a name of ``gatewayd.tracing.causes.CAUSES``.
        reason: the same as a sentence.
        slack_ms: time until its first token is due; None without a deadline, negative if late.
        is_held: whether an operator holds it.
        request_id: id given by the gateway: clients may send an ``x-request-id`` twice.
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
    """A choice with a row of an engine's batch.

    Attributes:
        id: the ``x-request-id`` of its request.
        choice: its index among the choices of the request.
        tenant, priority, engine: as in ``WaitingView``.
        age_ms: since the request's arrival.
        phase: ``prefill``, ``decode``, or ``held`` back between two steps.
        cause: what its time is spent on now, a name of ``CAUSES``.
        prompt_tokens: tokens of its prompt.
        cached_tokens: of these, found in the cache.
        computed_tokens: computed tokens of its sequence, prompt and output.
        generated_tokens: tokens generated so far.
        max_tokens: maximum generated tokens.
        tokens_per_second: generation rate since its first token.
        pages: pages of the KV pool that it holds, including shared ones.
        preemptions: number of its preemptions.
        guided: whether a grammar constrains it.
        accepted: acceptance rate of its draft tokens; None without any.
        request_id: as in ``WaitingView``.
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
    """The pages of an engine's KV pool.

    Attributes:
        engine: index of the engine.
        pages_per_cell: number of pages per character of ``cells``; 1 unless there are too many.
        cells: a character per cell: ``.`` free, ``c`` cached and evictable, ``a`` active, ``s``
            shared by several sequences, ``p`` pinned; for several pages the most common one.
        owners: for each cell an index into ``tenants``, as a character from ``0`` on (``chr(48 +
            index)``), or a space for no owner.
        tenants: tenants that hold pages or have cached ones.
        free, cached, active, shared, pinned: numbers of pages; their sum is the pool.
        by_tenant: pages held or cached, by tenant.
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
    """An SLO of a request class, as in ``/metrics``.

    Attributes:
        priority: the priority class.
        slo: ``ttft``, ``tpot``, ``e2e``, or ``all`` of them.
        target_ms: the target; None for ``all``.
        objective: required share of requests within the target.
        good, bad: numbers of requests so far.
        burn: burn rates by window: ``5m``, ``1h``, ``6h``.
    """

    priority: str
    slo: str
    target_ms: float | None
    objective: float
    good: int
    bad: int
    burn: dict[str, float]


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """Present usage and limits of a tenant; None for no limit.

    Attributes:
        tenant: its name.
        weight: its weight in fair scheduling.
        running, waiting: numbers of its requests.
        concurrency: maximum of concurrent requests.
        requests, requests_per_minute: requests within the last minute, and the limit.
        tokens, tokens_per_minute: tokens within the last minute, and the limit.
        used_tokens, most_tokens: settled tokens, and the budget.
        reserved_tokens: tokens reserved for requests that are not settled.
        used_micros, most_micros: settled cost and the budget, in millionths of the currency.
        pages: pages of the KV pools, held or cached.
        kept_bytes, store_bytes: stored bytes, and the configured limit.
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
        engine: index of the engine; ``none`` for strategies of the daemon.
        kind, name: kind and name of the plugin.
        state: ``active``, ``quarantined`` or ``replaced``.
        faults, calls: totals.
        mean_us, longest_us: mean and maximum duration of a call.
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
        number: consecutive number of the line.
        unix: Unix time.
        level: ``debug`` to ``critical``.
        source: name of the logger.
        message: the message.
        request_id: the gateway's id of the request that it concerns; empty for none.
        x_request_id: the ``x-request-id`` of that request; empty if unknown.
    """

    number: int
    unix: float
    level: str
    source: str
    message: str
    request_id: str = ""
    x_request_id: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of the daemon at one instant.

    Attributes:
        version: version of the format.
        number: consecutive number.
        unix: Unix time.
        daemon, engines, latencies, waiting, running, kv, slo, tenants, strategies: see their types.
        more_waiting, more_running, more_tenants: numbers of rows beyond ``MOST_ROWS``.
        limits: limits that can be changed, by name.
        samples: metrics of ``/metrics``, by name and labels in the exposition format; without
            buckets of histograms.
        samples_unix: Unix time of ``samples`` and ``slo``: in a stream up to a second before the
            rest. 0 in recordings of older daemons: that of the rest.
        logs: in a stream, log lines since its previous snapshot; otherwise the last 200.
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
    """A page in the prefix tree of cached pages, ``GET /admin/prefixes``.

    Attributes:
        engine: index of the engine.
        page: number of the page.
        parent: the preceding page; None for first pages of prompts.
        depth: number of preceding pages.
        tokens: number of its tokens.
        text: its decoded beginning, at most 80 characters; empty where the tenant's text is not
            shown.
        tenant: owner of the prompts that it serves.
        holders: number of sequences that hold it now.
        hits: number of requests that found it since it was cached.
        is_pinned: whether an operator pins it.
        children: number of all its descendants.
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
        rows: the children, largest first.
        more: number of rows beyond the limit.
    """

    rows: list[PrefixView]
    more: int
