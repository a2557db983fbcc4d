"""Snapshots: agree with ``/metrics`` and with what was sent."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gatewayd.admin.client import AdminError, call, stream_snapshots
from gatewayd.wire.snapshot import EngineView, PrefixSummary, Snapshot

Start = Callable[..., Any]
NANO = ("-m", "gatewayd", "serve", "--port", "0")
PAGES = 64
KEPT = list(range(300, 364))


@pytest.fixture
def daemon(start_daemon: Start, tmp_path: Path) -> Any:
    """Two rows and 64 pages; its socket is ``path``."""
    path, file = tmp_path / "admin.sock", tmp_path / "g.toml"
    file.write_text(
        f'[admin]\nsocket = "{path}"\n[engine]\nthreads = 1\nkv_pages = {PAGES}\n'
        'max_running = 2\n[eviction]\nstrategy = "retention"\n'
    )
    found = start_daemon(NANO, env={"GATEWAYD_CONFIG": str(file), "GATEWAYD_ENGINE__THREADS": "1"})
    found.path = str(path)
    return found


def snapshot(daemon: Any) -> Snapshot:
    found = msgspec.convert(call(daemon.path, "GET", "/admin/snapshot"), Snapshot)
    check(found)
    return found


def until(daemon: Any, condition: Callable[[Snapshot], object]) -> Snapshot:
    deadline = time.monotonic() + 30
    while not condition(found := snapshot(daemon)):
        assert time.monotonic() < deadline, found
    return found


class Asking:
    """Requests on their way."""

    def __init__(self, daemon: Any, key: str = "none") -> None:
        self._url = f"{daemon.url}/v1/completions"
        self._key = key
        self._threads: list[threading.Thread] = []

    def ask(self, name: str, prompt: list[int], max_tokens: int, **fields: Any) -> None:
        body = {"model": "nano", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, **fields}
        headers = {"x-request-id": name, "authorization": f"Bearer {self._key}"}

        def work() -> None:
            httpx.post(self._url, json=body, headers=headers, timeout=60).raise_for_status()

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def finish(self) -> None:
        for thread in self._threads:
            thread.join()


def metrics(daemon: Any) -> dict[str, float]:
    """What ``/metrics`` shows, read line by line."""
    found = {}
    for line in httpx.get(f"{daemon.url}/metrics").text.splitlines():
        key, _, value = line.rpartition(" ")
        if not line.startswith("#") and "_bucket{" not in key and math.isfinite(float(value)):
            found[key] = float(value)
    return found


FIGURES = {
    "free_pages": 'gatewayd_kv_pages{engine="0",model_name="nano",state="free"}',
    "cached_pages": 'gatewayd_kv_pages{engine="0",model_name="nano",state="cached"}',
    "held_pages": 'gatewayd_kv_pages{engine="0",model_name="nano",state="held"}',
    "num_running": 'vllm:num_requests_running{engine="0",model_name="nano"}',
    "num_waiting": 'vllm:num_requests_waiting{engine="0",model_name="nano"}',
    "steps": 'gatewayd_engine_steps_total{engine="0",model_name="nano"}',
    "computed_tokens": 'gatewayd_engine_computed_tokens_total{engine="0",model_name="nano"}',
    "preemptions": 'vllm:num_preemptions_total{engine="0",model_name="nano"}',
    "faults": 'gatewayd_strategy_faults_total{engine="0",model_name="nano"}',
    "prefix_queries": 'vllm:prefix_cache_queries_total{engine="0",model_name="nano"}',
    "prefix_hits": 'vllm:prefix_cache_hits_total{engine="0",model_name="nano"}',
    "draft_tokens": 'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="nano"}',
    "accepted_tokens": 'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="nano"}',
    "restarts": 'gatewayd_engine_restarts_total{engine="0",model_name="nano"}',
}


def check(found: Snapshot) -> None:
    """What is so at every instant."""
    (engine,) = found.engines
    for name, key in FIGURES.items():
        assert getattr(engine, name) == found.samples[key], name
    if engine.resident_bytes is not None:  # it has been looked at
        size = 'gatewayd_engine_resident_bytes{engine="0",model_name="nano"}'
        assert engine.resident_bytes == found.samples[size]
        assert engine.device_total is None
    state = f'gatewayd_replica_state{{engine="0",model_name="nano",state="{engine.state}"}}'
    assert found.samples[state] == 1
    for promise in found.slo:
        labels = f'{{class="{promise.priority}",model_name="nano",slo="{promise.slo}"}}'
        assert found.samples[f"gatewayd_slo_good_total{labels}"] == promise.good
        assert found.samples[f"gatewayd_slo_bad_total{labels}"] == promise.bad
    for row in found.strategies:
        labels = f'{{engine="{row.engine}",kind="{row.kind}",model_name="nano",name="{row.name}"}}'
        assert found.samples[f"gatewayd_strategy_calls_total{labels}"] == row.calls
    for kv in found.kv:
        counts = [kv.free, kv.cached, kv.active, kv.shared, kv.pinned]
        assert counts == [kv.cells.count(letter) for letter in ".casp"]
        assert sum(counts) == len(kv.cells) == len(kv.owners) == PAGES
        assert sum(kv.by_tenant.values()) == PAGES - kv.free
        assert set(kv.owners) <= {" ", *(chr(48 + i) for i in range(len(kv.tenants)))}
    assert sum(tenant.running for tenant in found.tenants) == len({r.id for r in found.running})
    assert sum(tenant.waiting for tenant in found.tenants) == len(found.waiting)
    assert found.more_waiting == found.more_running == found.more_tenants == 0


def same_pages(found: Snapshot) -> bool:
    """Whether the map is of the same instant as the engine's figures: it is when nothing runs."""
    (engine,), (kv,) = found.engines, found.kv
    held, cached = kv.active + kv.shared, kv.cached + kv.pinned
    return (kv.free, cached, held) == (engine.free_pages, engine.cached_pages, engine.held_pages)


def test_a_daemon_is_shown_as_it_is(daemon: Any) -> None:
    begins_idle(daemon)
    shows_what_runs_and_waits(daemon)
    shows_what_is_cached(daemon)
    streams_to_two(daemon)
    does_not_wait_for_a_stopped_engine(daemon)
    shows_tenants_and_not_what_they_send(daemon)
    shows_its_end(daemon)


def begins_idle(daemon: Any) -> None:
    found = until(daemon, same_pages)
    (engine,) = found.engines
    assert (found.daemon.state, found.daemon.url) == ("ready", daemon.url)
    assert (found.daemon.pid, found.daemon.troubles) == (daemon.process.pid, [])
    assert (engine.state, engine.pid, engine.device) == ("ready", daemon.engine_pid, "cpu")
    assert (engine.num_pages, engine.max_running) == (PAGES, 2)
    assert engine.num_parameters > 10**7
    assert engine.weight_bytes > 2.5 * 10**7
    assert engine.page_bytes * PAGES > 10**6
    assert 0 < engine.load_seconds < 60
    assert [one.count for one in found.latencies] == [0, 0, 0]
    assert (found.running, found.waiting) == ([], [])
    assert any(line.message.startswith("listening on ") for line in found.logs)
    assert [line.number for line in found.logs] == list(range(1, len(found.logs) + 1))


def shows_what_runs_and_waits(daemon: Any) -> None:
    asking = Asking(daemon)
    asking.ask("both", [*KEPT, 7], 150, n=2)
    until(daemon, lambda s: len(s.running) == 2)
    asking.ask("late", [*KEPT, 8], 2)
    found = until(daemon, lambda s: s.kv[0].shared and [w.cause for w in s.waiting] == ["rows"])
    (late,) = found.waiting
    assert (late.id, late.engine, late.prompt_tokens, late.max_tokens) == ("late", 0, 65, 2)
    assert (late.cause, late.reason) == ("rows", "queued: the running batch was full")
    assert (late.cached_tokens, late.choices, late.is_held) == (64, 1, False)
    assert late.slack_ms is not None
    assert late.slack_ms + late.age_ms == pytest.approx(2000, abs=20), "the target of its class"
    found = until(daemon, lambda s: all(row.generated_tokens > 8 for row in s.running))
    assert [(row.id, row.choice) for row in found.running] == [("both", 0), ("both", 1)]
    for row in found.running:
        assert (row.engine, row.phase, row.cause, row.max_tokens) == (0, "decode", "decode", 150)
        assert row.prompt_tokens == 65
        # What was generated last is computed with the next step, and frames are on their way.
        assert abs(row.computed_tokens - row.prompt_tokens - row.generated_tokens) <= 4
        assert row.pages == -(-row.computed_tokens // 16)
        assert row.tokens_per_second > 0
        assert (row.preemptions, row.guided, row.accepted, row.tenant) == (0, False, None, "")
    asking.finish()
    found = until(daemon, lambda s: same_pages(s) and not s.engines[0].num_running)
    assert {one.name: one.count for one in found.latencies} == {"ttft": 2, "tpot": 2, "e2e": 2}
    (tenant,) = found.tenants
    assert (tenant.tenant, tenant.requests, tenant.tokens) == ("default", 2, 65 + 300 + 65 + 2)
    assert tenant.pages == PAGES - found.kv[0].free
    # Nothing happens now but scrapes, which count themselves, and calls of strategies.
    shown, scraped = snapshot(daemon).samples, metrics(daemon)
    differing = {key for key in shown.keys() | scraped.keys() if shown.get(key) != scraped.get(key)}
    changing = ("gatewayd_strategy_", "gatewayd_http_requests_total", "gatewayd_store_")
    assert all(key.startswith(changing) for key in differing), differing


def prefixes(daemon: Any, query: str = "") -> PrefixSummary:
    return msgspec.convert(call(daemon.path, "GET", f"/admin/prefixes{query}"), PrefixSummary)


def shows_what_is_cached(daemon: Any) -> None:
    call(daemon.path, "PUT", "/admin/pins", {"prompt": KEPT, "seconds": 60})
    found = until(daemon, same_pages)
    assert found.kv[0].pinned == 4
    at, depth = prefixes(daemon).rows[0], 0
    text = at.text
    before = at.hits
    body = {"model": "nano", "prompt": [*KEPT, 9], "max_tokens": 1}
    for _ in range(3):
        assert httpx.post(f"{daemon.url}/v1/completions", json=body).status_code == 200
    at = prefixes(daemon).rows[0]
    assert at.hits == before + 3
    while at.is_pinned:
        assert at.hits >= 3
        assert (at.depth, at.tokens, at.tenant, at.holders) == (depth, 16, "default", 0)
        below = prefixes(daemon, f"?engine=0&parent={at.page}")
        assert sum(1 + row.children for row in below.rows) == at.children
        assert all(row.parent == at.page for row in below.rows)
        at, depth = below.rows[0], depth + 1
    assert depth == 4
    told = httpx.post(f"{daemon.url}/detokenize", json={"model": "nano", "tokens": KEPT[:16]})
    assert told.json()["prompt"][:80] == text
    assert prefixes(daemon, "?limit=1&parent=9999999").rows == []
    for query, words in (
        ("?engine=1", "engine is 1; they are 0 to 0"),
        ("?limit=0", "limit is 0; it must be from 1 to 1000"),
        ("?parent=-3", "parent is '-3'; it must be a whole number"),
    ):
        with pytest.raises(AdminError, match=words):
            prefixes(daemon, query)


def streams_to_two(daemon: Any) -> None:
    one, other = stream_snapshots(daemon.path, 0.1), stream_snapshots(daemon.path, 0.1)
    firsts = {next(one).number, next(other).number}
    found = [next(one).number for _ in range(3)]
    assert found == sorted(found)
    assert min(found) > min(firsts)
    assert {next(other).number for _ in range(4)} & set(found), "they share them"
    streamed = [next(one) for _ in range(14)]
    ages = [each.unix - each.samples_unix for each in streamed]
    # They are a second old at most when a snapshot is begun, and it is made at once.
    assert -0.01 <= min(ages) < 0.5 < max(ages) < 5, "what /metrics shows is older"
    seconds = streamed[-1].unix - streamed[0].unix
    assert len({each.samples_unix for each in streamed}) <= 2 + seconds
    alone = snapshot(daemon)
    assert abs(alone.unix - alone.samples_unix) < 0.5, "but not for who asks once"
    one.close()
    other.close()


def does_not_wait_for_a_stopped_engine(daemon: Any) -> None:
    before = snapshot(daemon)
    pid = daemon.engine_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        took = []
        for _ in range(2):
            began = time.monotonic()
            after = snapshot(daemon)
            took.append(time.monotonic() - began)
        assert max(took) < 5, "an engine counts as hung after ten"
        assert min(took) > 0.2
        assert after.kv == before.kv
    finally:
        os.kill(pid, signal.SIGCONT)
    assert isinstance(snapshot(daemon).engines[0], EngineView)


def shows_tenants_and_not_what_they_send(daemon: Any) -> None:
    terms = {"concurrency": 3, "requests_per_minute": 60, "most_tokens": 1000}
    call(daemon.path, "POST", "/admin/tenants", {"tenant": "acme", "terms": terms})
    key = call(daemon.path, "POST", "/admin/keys", {"tenant": "acme"})["secret"]
    daemon.key = key
    asking = Asking(daemon, key)
    asking.ask("theirs", list(range(500, 548)), 100)
    found = until(daemon, lambda s: s.running and s.running[0].generated_tokens)
    assert [(row.id, row.tenant) for row in found.running] == [("theirs", "acme")]
    acme = {tenant.tenant: tenant for tenant in found.tenants}["acme"]
    assert (acme.running, acme.waiting, acme.concurrency, acme.requests) == (1, 0, 3, 1)
    assert (acme.requests_per_minute, acme.most_tokens, acme.reserved_tokens) == (60, 1000, 148)
    assert acme.pages == found.kv[0].by_tenant["acme"] >= 3
    asking.finish()
    found = until(daemon, lambda s: all(not tenant.reserved_tokens for tenant in s.tenants))
    acme = {tenant.tenant: tenant for tenant in found.tenants}["acme"]
    assert (acme.used_tokens, acme.tokens) == (148, 148)
    (row,) = (row for row in prefixes(daemon).rows if row.tenant == "acme")
    assert (row.text, row.tokens, row.is_pinned) == ("", 16, False)
    assert not any(key in line.message for line in found.logs)


def shows_its_end(daemon: Any) -> None:
    Asking(daemon, daemon.key).ask("last", KEPT, 120)
    until(daemon, lambda s: s.running)
    stream = stream_snapshots(daemon.path, 0.1)
    next(stream)
    daemon.process.send_signal(signal.SIGTERM)
    states = [found.daemon.state for found in stream]
    assert states[-1] == "draining"
    assert daemon.process.wait(30) == 0
