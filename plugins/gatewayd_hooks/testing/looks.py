"""Snapshots of a daemon for console panels: an idle one and a busy one."""

from __future__ import annotations

from typing import Any

_ENGINE = {
    "index": 0,
    "state": "ready",
    "detail": "",
    "pid": 4243,
    "uptime_seconds": 3600.0,
    "restarts": 0,
    "device": "cpu",
    "dtype": "float32",
    "num_parameters": 11_000_000,
    "weight_bytes": 44_000_000,
    "load_seconds": 1.5,
    "max_model_len": 2048,
    "max_running": 32,
    "max_batch_tokens": 512,
    "page_size": 16,
    "num_pages": 256,
    "free_pages": 256,
    "cached_pages": 0,
    "held_pages": 0,
    "page_bytes": 65_536,
    "num_running": 0,
    "num_waiting": 0,
    "steps": 0,
    "computed_tokens": 0,
    "preemptions": 0,
    "faults": 0,
    "prefix_queries": 0,
    "prefix_hits": 0,
    "draft_tokens": 0,
    "accepted_tokens": 0,
    "step_tokens": 0,
    "step_seconds": 0.0,
    "resident_bytes": None,
    "cpu_cores": None,
    "device_used": None,
    "device_total": None,
    "device_utilization": None,
}
_KV = {
    "engine": 0,
    "pages_per_cell": 1,
    "cells": "." * 256,
    "owners": " " * 256,
    "tenants": [],
    "free": 256,
    "cached": 0,
    "active": 0,
    "shared": 0,
    "pinned": 0,
    "by_tenant": {},
    "tiers": {},
}
_WAITING = {
    "id": "req-2",
    "tenant": "acme",
    "priority": "standard",
    "engine": 0,
    "age_ms": 1500.0,
    "prompt_tokens": 900,
    "cached_tokens": 128,
    "max_tokens": 64,
    "choices": 1,
    "cause": "pages",
    "reason": "there are too few free pages",
    "slack_ms": -20.0,
    "is_held": False,
    "request_id": "req_000000000000000000000002",
}
_RUNNING = {
    "id": "req-1",
    "choice": 0,
    "tenant": "acme",
    "priority": "realtime",
    "engine": 0,
    "age_ms": 300.0,
    "phase": "decode",
    "cause": "decode",
    "prompt_tokens": 200,
    "cached_tokens": 0,
    "computed_tokens": 212,
    "generated_tokens": 12,
    "max_tokens": 64,
    "tokens_per_second": 80.0,
    "pages": 14,
    "preemptions": 0,
    "guided": False,
    "accepted": None,
    "request_id": "req_000000000000000000000001",
}
_TENANT = {
    "tenant": "acme",
    "weight": 1.0,
    "running": 1,
    "waiting": 2,
    "concurrency": 8,
    "requests": 3,
    "requests_per_minute": None,
    "tokens": 1200,
    "tokens_per_minute": 10_000,
    "used_tokens": 5000,
    "most_tokens": None,
    "reserved_tokens": 100,
    "used_micros": 0,
    "most_micros": None,
    "pages": 34,
    "kept_bytes": 8192,
    "store_bytes": None,
}


def idle_look() -> dict[str, Any]:
    """Return the snapshot of a daemon without requests or tenants."""
    return {
        "version": 1,
        "number": 1,
        "unix": 1_800_000_000.0,
        "daemon": {
            "version": "0.1.0",
            "pid": 4242,
            "url": "http://127.0.0.1:8000",
            "model": "nano",
            "models": ["nano"],
            "state": "ready",
            "uptime_seconds": 3600.0,
            "troubles": [],
        },
        "engines": [dict(_ENGINE)],
        "latencies": [
            {"name": name, "p50": None, "p95": None, "p99": None, "count": 0}
            for name in ("ttft", "tpot", "e2e")
        ],
        "waiting": [],
        "more_waiting": 0,
        "running": [],
        "more_running": 0,
        "more_tenants": 0,
        "kv": [dict(_KV)],
        "slo": [],
        "tenants": [],
        "strategies": [],
        "limits": {},
        "samples": {},
        "samples_unix": 1_800_000_000.0,
        "logs": [],
    }


def busy_look() -> dict[str, Any]:
    """Return one with two engines, waiting and running requests, and more than are listed."""
    pages = {"cells": "." * 200 + "c" * 20 + "a" * 34 + "sp", "free": 200, "cached": 20}
    kv = _KV | pages | {"active": 34, "shared": 1, "pinned": 1, "tiers": {"host": 12}}
    owners = {"owners": " " * 200 + "0" * 56, "tenants": ["acme"], "by_tenant": {"acme": 56}}
    busy = {"free_pages": 200, "cached_pages": 21, "held_pages": 35, "num_running": 1}
    lost = {"index": 1, "state": "starting", "detail": "reading weights", "pid": None}
    slo = {"priority": "realtime", "objective": 0.99, "good": 90, "bad": 10}
    burn = {"5m": 10.0, "1h": 3.5, "6h": 0.5}
    strategy = {"engine": "0", "kind": "scheduler", "name": "fcfs", "state": "active"}
    cost = {"faults": 0, "calls": 100, "mean_us": 12.5, "longest_us": 90.0}
    line = {
        "number": 7,
        "unix": 1_800_000_009.0,
        "level": "warning",
        "source": "gatewayd.admin.control",
    }
    line |= {"x_request_id": ""}
    return idle_look() | {
        "number": 8,
        "unix": 1_800_000_010.0,
        "engines": [_ENGINE | busy, _ENGINE | lost],
        "waiting": [_WAITING, _WAITING | {"id": "req-3", "engine": None, "cached_tokens": None}],
        "more_waiting": 5,
        "running": [dict(_RUNNING)],
        "kv": [kv | owners],
        "slo": [
            slo | {"slo": "ttft", "target_ms": 500.0, "burn": burn},
            slo | {"slo": "all", "target_ms": None, "burn": burn},
        ],
        "tenants": [dict(_TENANT)],
        "strategies": [strategy | cost],
        "limits": {"max_batch_tokens": 512},
        "samples": {"gatewayd_requests_total": 9.0},
        "samples_unix": 1_800_000_009.5,
        "logs": [line | {"message": "scheduler is fcfs", "request_id": ""}],
    }
