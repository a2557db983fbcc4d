"""Snapshot requests: waiting and running rows equal a look at each choice."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gatewayd.admin.snapshots.requests import RequestRows, SequenceReport
from gatewayd.admin.snapshots.tenants import TenantRows
from gatewayd.engines.api import EngineRequest
from gatewayd.engines.job import EngineJob
from gatewayd.engines.request_handle import JobHandle
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.tracing.causes import AT_ENGINE, CAUSES
from gatewayd.tracing.timeline import NO_ENGINE, StepTimeTotals
from gatewayd.wire.snapshot import MOST_ROWS
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.time_causes import Cause

NOW = 1000.0
RUNS = {Cause.TURN: "held", Cause.PREFILL: "prefill", Cause.RECOMPUTE: "prefill"}
RUNS |= {Cause.DECODE: "decode"}
WAITS = (Cause.PREEMPTED, Cause.HELD)


class Given(SimpleNamespace):
    """A request as the pipeline keeps it."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def generation(name: str, prompts: int = 1, n: int = 1, tenant: str = "", **fields: Any) -> Given:
    """One of which all is queued at engine 0."""
    told = [
        SimpleNamespace(
            index=at, completion_tokens=0, cached_tokens=0, first=None, num_preemptions=0
        )
        for at in range(prompts * n)
    ]
    handles = []
    for at in range(prompts):
        request = EngineRequest(
            f"req_{name}", [1, 2, 3], SamplingParams(9), tenant=tenant, **fields
        )
        job = EngineJob.from_request(0, request, cast(Any, told[at * n : (at + 1) * n]))
        job.arrived, job.replica, job.is_waiting = NOW - 2, 0, True
        for choice in job.choices:
            choice.is_queued = True
            choice.sequence = int(name) * 100 + at * n + choice.index
        handles.append(JobHandle(cast(Any, None), job))
    principal = SimpleNamespace(tenant=tenant or "default")
    return Given(
        answered_id=name,
        arrival=NOW - 3,
        handles=handles,
        choices=told,
        prompt_tokens=3 * prompts,
        work=SimpleNamespace(request_id=f"req_{name}", principal=principal, num_choices=n),
    )


def spends_on(found: Given, choice: int, cause: int) -> None:
    """The engine has admitted a choice, and says what its time goes to."""
    n = found.work.num_choices
    job = found.handles[choice // n].job
    job.is_waiting = False
    one = job.choices[choice % n]
    one.is_queued = False
    one.timeline.sent(NOW - 1, StepTimeTotals())
    one.timeline.on_step(cause, 0.0)


def rows_of(found: list[Given], looks: dict[int, SequenceReport] | None = None) -> RequestRows:
    return RequestRows(cast(Any, found), looks or {}, NOW)


def test_what_waits_has_its_cause_and_what_an_engine_says_of_it() -> None:
    one = generation("1", prompts=2, tenant="a", priority=0, deadline=0.5)
    looks = {100: SequenceReport(0, 0, 16, 0, 0), 101: SequenceReport(0, 0, 32, 0, 0)}
    (row,) = rows_of([one], looks).waiting
    assert (row.id, row.tenant, row.priority, row.engine) == ("1", "a", "realtime", 0)
    assert row.request_id == "req_1"
    assert (row.prompt_tokens, row.cached_tokens, row.choices, row.max_tokens) == (6, 48, 2, 9)
    assert (row.cause, row.reason, row.is_held) == ("no_engine", CAUSES["no_engine"], False)
    assert (row.age_ms, row.slack_ms) == (3000, -1500)
    (row,) = rows_of([one], {100: looks[100]}).waiting
    assert row.cached_tokens is None, "of the second prompt nobody knows"
    one.handles[0].job.is_held = True
    assert rows_of([one]).waiting[0].is_held


def test_what_runs_has_what_both_sides_know() -> None:
    one = generation("1", prompts=2, n=2)
    spends_on(one, 3, Cause.DECODE)
    told = one.choices[3]
    told.completion_tokens, told.first, told.cached_tokens = 21, NOW - 2.0, 2
    rows = rows_of([one], {103: SequenceReport(23, 2, None, 8, 2)})
    assert rows.waiting == []
    (row,) = rows.running
    assert (row.id, row.choice, row.engine, row.phase, row.cause) == ("1", 3, 0, "decode", "decode")
    assert row.request_id == "req_1"
    assert (row.generated_tokens, row.computed_tokens, row.pages) == (21, 23, 2)
    assert (row.tokens_per_second, row.accepted, row.cached_tokens) == (10, 0.25, 2)
    assert (dict(rows.runs), dict(rows.waits)) == ({"default": 1}, {})


def test_a_deadline_is_over_with_the_first_token() -> None:
    one = generation("1", deadline=0.5)
    spends_on(one, 0, Cause.PREEMPTED)
    assert rows_of([one]).waiting[0].slack_ms == -1500
    one.choices[0].first = NOW
    assert rows_of([one]).waiting[0].slack_ms is None


def test_many_requests_are_rows_or_counted() -> None:
    rng = random.Random(4)
    requests, waiting, running = [], [], []
    for number in range(700):
        prompts, n = rng.choice([1, 1, 2]), rng.choice([1, 1, 3])
        tenant = rng.choice(["", "a"])
        one = generation(str(number), prompts, n, tenant)
        runs, waits = [], False
        for choice in range(prompts * n):
            what = rng.random()
            if what < 0.4:
                cause = rng.choice([*RUNS])
                spends_on(one, choice, cause)
                runs.append((str(number), choice, AT_ENGINE[cause], RUNS[cause]))
            elif what < 0.5:
                spends_on(one, choice, rng.choice(WAITS))
                waits = True
            elif what < 0.7:
                one.handles[choice // n].job.choices[choice % n].is_over = True
            else:
                waits = True
        for handle in one.handles:
            if rng.random() < 0.1:  # its engine was lost
                handle.job.replica = None
        gone = [at for at, handle in enumerate(one.handles) if handle.job.replica is None]
        waits |= any(run[1] // n in gone for run in runs)
        runs = [run for run in runs if run[1] // n not in gone]
        requests.append(one)
        running += runs
        if waits and not runs:
            waiting.append((str(number), tenant or "default"))
    rows = rows_of(requests)
    shown = [(row.id, row.choice, row.cause, row.phase) for row in rows.running]
    assert shown == running[:MOST_ROWS]
    assert [row.id for row in rows.waiting] == [name for name, _ in waiting[:MOST_ROWS]]
    assert rows.more_running == len(running) - MOST_ROWS > 0
    assert rows.more_waiting == len(waiting) - MOST_ROWS > 0
    for tenant in ("default", "a"):
        assert rows.waits[tenant] == sum(whose == tenant for _, whose in waiting)
    assert sum(rows.runs.values()) == len({name for name, *_ in running})


def test_a_full_queue_is_looked_at_quickly() -> None:
    requests = [generation(str(number)) for number in range(2048)]
    took = []
    for _ in range(5):
        began = time.thread_time()
        rows = rows_of(requests)
        took.append(time.thread_time() - began)
    assert (len(rows.waiting), rows.more_waiting) == (MOST_ROWS, 2048 - MOST_ROWS)
    print(f"{1000 * min(took):.2f} ms")
    assert min(took) < 0.02


def test_every_cause_has_a_sentence() -> None:
    for cause in (NO_ENGINE, *Cause):
        assert CAUSES[AT_ENGINE[cause]]


# Tenants


class Store:
    """Reads what is given."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.reads = 0

    async def act(self, *arguments: Any) -> list[dict[str, Any]]:
        self.reads += 1
        return self.rows


def tenant(name: str, used: int = 0) -> dict[str, Any]:
    limits = dict.fromkeys(
        (
            "concurrency",
            "requests_per_minute",
            "tokens_per_minute",
            "most_tokens",
            "most_micros",
            "store_bytes",
        )
    )
    amounts = {"used_tokens": used, "reserved_tokens": 3, "used_micros": 4, "kept_bytes": 5}
    return {"tenant": name, "weight": 2.0, **limits, **amounts}


async def test_the_busiest_tenants_are_shown_and_the_others_counted() -> None:
    names = [f"t{number:03}" for number in range(MOST_ROWS + 50)]
    store = Store([tenant(name, used=at) for at, name in enumerate(names)])
    live = LiveRequests[Generation]()
    tenants = TenantRows(cast(Any, store), live)
    reading = tenants.start_reading()
    assert reading is not None
    await reading
    one = generation("1", tenant="t001")
    views, more = tenants.views(rows_of([one]), {"t002": 5})
    assert more == 50
    assert [view.tenant for view in views] == ["t001", "t002", *names[52:]]
    assert (views[0].waiting, views[0].weight, views[0].reserved_tokens) == (1, 2.0, 3)
    assert views[1].pages == 5
    assert tenants.start_reading() is None, "it is fresh"
    live.add(cast(Any, one))
    reading = tenants.start_reading()
    assert reading is not None, "somebody new may have come"
    await reading
    assert tenants.start_reading() is None
    assert store.reads == 2


@pytest.mark.parametrize("cause", WAITS)
def test_who_has_given_its_row_up_waits(cause: Cause) -> None:
    one = generation("1")
    spends_on(one, 0, cause)
    rows = rows_of([one])
    assert (rows.running, [row.cause for row in rows.waiting]) == ([], [AT_ENGINE[cause]])
