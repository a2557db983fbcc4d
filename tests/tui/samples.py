"""Sample snapshots as a daemon sends them."""

from __future__ import annotations

from typing import Any

from gatewayd.wire.requests import CausePart, Explanation
from gatewayd.wire.snapshot import (
    DaemonView,
    EngineView,
    KvView,
    LatencyView,
    LogView,
    RunningView,
    SloView,
    Snapshot,
    StrategyView,
    TenantView,
    WaitingView,
)

BEGAN = 1_790_000_000.0


def waiting(number: int, **changed: Any) -> WaitingView:
    fields: dict[str, Any] = {
        "id": f"wait-{number:04}",
        "tenant": ("acme", "globex")[number % 2],
        "priority": ("standard", "batch", "realtime")[number % 3],
        "engine": 0,
        "age_ms": 1000.0 + 10 * number,
        "prompt_tokens": 100 + number,
        "cached_tokens": 64,
        "max_tokens": 256,
        "choices": 1,
        "cause": "rows",
        "reason": "queued: the running batch was full",
        "slack_ms": 500.0 - 100 * number,
        "is_held": False,
    }
    return WaitingView(**fields | changed)


def running(number: int, **changed: Any) -> RunningView:
    fields: dict[str, Any] = {
        "id": f"run-{number:04}",
        "choice": 0,
        "tenant": ("acme", "globex")[number % 2],
        "priority": "standard",
        "engine": 0,
        "age_ms": 2000.0 + 100 * number,
        "phase": "decode",
        "cause": "decode",
        "prompt_tokens": 200,
        "cached_tokens": 128,
        "computed_tokens": 240 + number,
        "generated_tokens": 40 + number,
        "max_tokens": 256,
        "tokens_per_second": 21.5,
        "pages": 16,
        "preemptions": 0,
        "guided": False,
        "accepted": None,
    }
    return RunningView(**fields | changed)


def engine(**changed: Any) -> EngineView:
    fields: dict[str, Any] = {
        "index": 0,
        "state": "ready",
        "detail": "",
        "pid": 4242,
        "uptime_seconds": 3600.0,
        "restarts": 0,
        "device": "cpu",
        "dtype": "float32",
        "num_parameters": 30_000_000,
        "weight_bytes": 120_000_000,
        "load_seconds": 2.5,
        "max_model_len": 2048,
        "max_running": 16,
        "max_batch_tokens": 512,
        "page_size": 16,
        "num_pages": 1000,
        "free_pages": 500,
        "cached_pages": 200,
        "held_pages": 300,
        "page_bytes": 65536,
        "num_running": 3,
        "num_waiting": 5,
        "steps": 1000,
        "computed_tokens": 50_000,
        "preemptions": 1,
        "faults": 0,
        "prefix_queries": 20_000,
        "prefix_hits": 12_000,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "step_tokens": 48,
        "step_seconds": 0.02,
        "resident_bytes": 3 << 29,
        "cpu_cores": 1.75,
    }
    return EngineView(**fields | changed)


def kv(**changed: Any) -> KvView:
    fields: dict[str, Any] = {
        "engine": 0,
        "pages_per_cell": 1,
        "cells": "." * 500 + "c" * 200 + "a" * 200 + "s" * 80 + "p" * 20,
        "owners": " " * 500 + "0" * 350 + "1" * 150,
        "tenants": ["acme", "globex"],
        "free": 500,
        "cached": 200,
        "active": 200,
        "shared": 80,
        "pinned": 20,
        "by_tenant": {"acme": 350, "globex": 150},
        "tiers": {"host": 40},
    }
    return KvView(**fields | changed)


def slo(**changed: Any) -> SloView:
    fields: dict[str, Any] = {
        "priority": "realtime",
        "slo": "ttft",
        "target_ms": 500.0,
        "objective": 0.99,
        "good": 990,
        "bad": 10,
        "burn": {"5m": 1.4, "1h": 0.8, "6h": 0.25},
    }
    return SloView(**fields | changed)


def log(number: int, **changed: Any) -> LogView:
    fields: dict[str, Any] = {
        "number": number,
        "unix": BEGAN + number,
        "level": ("info", "warning", "error")[number % 3],
        "source": "gatewayd.engines",
        "message": f"line {number} of the log",
        "request_id": f"run-{number % 3:04}",
    }
    return LogView(**fields | changed)


def snapshot(number: int = 0, **changed: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "number": number,
        "unix": BEGAN + 0.5 * number,
        "daemon": DaemonView(
            version="0.1.0",
            pid=4000,
            url="http://127.0.0.1:8000",
            model="tiny",
            state="ready",
            uptime_seconds=3600.0 + 0.5 * number,
            troubles=[],
        ),
        "engines": [engine(prefix_queries=20_000 + 100 * number, prefix_hits=12_000 + 50 * number)],
        "latencies": [
            LatencyView(name="ttft", p50=82.0, p95=210.0, p99=480.0 + number, count=40),
            LatencyView(name="tpot", p50=21.0, p95=35.0, p99=50.0, count=40),
            LatencyView(name="e2e", p50=1900.0, p95=5200.0, p99=9100.0, count=40),
        ],
        "waiting": [waiting(each) for each in range(5)],
        "more_waiting": 0,
        "running": [running(each) for each in range(3)],
        "more_running": 0,
        "kv": [kv()],
        "slo": [
            slo(priority=priority, slo=name, target_ms=None if name == "all" else 500.0)
            for priority in ("realtime", "standard")
            for name in ("ttft", "all")
        ],
        "tenants": [
            TenantView(
                tenant=tenant,
                weight=1.0,
                running=runs,
                waiting=waits,
                concurrency=8,
                requests=30,
                requests_per_minute=600,
                tokens=tokens,
                tokens_per_minute=None,
                used_tokens=1_000_000,
                most_tokens=5_000_000,
                reserved_tokens=2_000,
                used_micros=120_000,
                most_micros=None,
                pages=pages,
                kept_bytes=7 << 30,
                store_bytes=8 << 30,
            )
            for tenant, runs, waits, tokens, pages in [
                ("acme", 2, 3, 41_000, 350),
                ("globex", 1, 2, 9_500, 150),
            ]
        ],
        "strategies": [
            StrategyView(
                engine="0",
                kind="scheduler",
                name="fair",
                state="active",
                faults=0,
                calls=1000,
                mean_us=14.2,
                longest_us=310.0,
            )
        ],
        "limits": {"max_batch_tokens": 512.0, "max_waiting_requests": 256.0},
        "samples": {
            'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"}': 500.0
            + number,
            'vllm:prompt_tokens_total{engine="0",model_name="tiny"}': 100_000.0 + 90 * number,
            'vllm:generation_tokens_total{engine="0",model_name="tiny"}': 40_000.0 + 30 * number,
            'gatewayd_http_requests_total{endpoint="other",method="POST",status="503"}': 2.0,
        },
        "logs": [log(each) for each in range(4 * number, 4 * number + 4)],
    }
    return Snapshot(**fields | changed)


def ended(order: str) -> list[dict[str, Any]]:
    """What ``GET /admin/requests`` lists."""
    rows = [
        {
            "id": f"done-{number:04}",
            "endpoint": "/v1/chat/completions",
            "priority": "standard",
            "outcome": ("stop", "length", "error")[number % 3],
            "arrived": BEGAN - 10 * number,
            "ms": 1000.0 + 250 * (number * 7 % 5),
            "ttft_ms": 200.0 if number % 3 else None,
            "cause": ("decode", "rows", "prefill")[number % 3],
        }
        for number in range(5)
    ]
    return sorted(rows, key=lambda row: -row["ms"]) if order == "slowest" else rows


def explanation(request: str) -> Explanation:
    """What ``GET /admin/requests/{id}`` answers."""
    parts = [
        CausePart("gateway", 0.0, 12.0),
        CausePart("rows", 12.0, 700.0),
        CausePart("prefill", 712.0, 88.0),
        CausePart("decode", 800.0, 180.0),
        CausePart("crowd", None, 20.0),
    ]
    causes = {part.cause: part.ms for part in sorted(parts, key=lambda part: -part.ms)}
    return Explanation(
        id=request,
        request_id=f"cmpl-{request}",
        endpoint="/v1/chat/completions",
        tenant="acme",
        priority="standard",
        outcome="stop",
        arrived=BEGAN,
        ms=1000.0,
        ttft_ms=800.0,
        tpot_ms=20.0,
        prompt_tokens=321,
        cached_tokens=256,
        completion_tokens=11,
        preemptions=1,
        verdict="70 % of 1000.0 ms: queued: the running batch was full",
        causes=causes,
        parts=parts,
    )
