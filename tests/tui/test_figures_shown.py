"""Figures on screen: equal ``/metrics`` of a real daemon at that instant."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.app import Console
from gatewayd_tui.client import DaemonSource
from gatewayd_tui.recording import Recorded, line_of
from tests.tui.conftest import text_of, until
from tests.tui.pictures import TENANTS, daemon, keys_of

STILL = ("vllm:", "gatewayd_kv_", "gatewayd_slo_")
"""What does not move while nothing runs."""


class Instant(NamedTuple):
    """A snapshot, and what ``/metrics`` said before and after it."""

    snapshot: Snapshot
    metrics: str

    def __call__(self, metric: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.metrics)
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        )


async def instant(session: aiohttp.ClientSession, url: str, live: DaemonSource) -> Instant:
    """One at which nothing moves."""

    async def scrape() -> str:
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 200, await answer.text()
            lines = (await answer.text()).splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith(STILL))

    async with asyncio.timeout(30):
        while True:
            before, found, after = await scrape(), await live.snapshot(), await scrape()
            here = Instant(found, after)
            if before == after and not here("vllm:num_requests_running"):
                return here


async def work(session: aiohttp.ClientSession, url: str, keys: dict[str, str]) -> None:
    """Some requests of each tenant, with prompts that begin alike."""

    async def ask(tenant: str, number: int) -> None:
        headers = {"authorization": f"Bearer {keys[tenant]}"}
        body = {
            "model": "nano",
            "prompt": f"def of_{tenant}(" + "a, b, c, d, " * 12 + f"{number}",
            "max_tokens": 5 + number,
            "ignore_eos": True,
        }
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    for place, tenant in enumerate(TENANTS):
        for number in range(2 + place):
            await ask(tenant, number)


def number(shown: str) -> float:
    """``37%``, ``0.25!``, ``12.3k``, ``2.0s``; a dash is none."""
    digits, unit = re.fullmatch(r"(-?[\d.]*)(\D*)", shown.rstrip("!^")).groups()  # type: ignore[union-attr]
    return float(digits or 0) * {"%": 0.01, "k": 1e3, "s": 1e3}.get(unit, 1.0)


def same(shown: str, value: float) -> None:
    """As far as it is written out."""
    digits = len(shown.rstrip("!^%ksm").partition(".")[2])
    unit = 0.01 if "%" in shown else 1e3 if shown[-1] in "ks" and "ms" not in shown else 1.0
    assert abs(number(shown) - value) <= 0.5001 * unit / 10**digits, (shown, value)


def beside(text: str, name: str) -> str:
    """The number that follows a name."""
    found = re.search(rf"(?<![\w/]){re.escape(name)}\s+(-?[\d.]+[%k]?|-)", text)
    assert found is not None, f"no {name} in {text}"
    return found[1]


def overview(text: str, first: Instant, last: Instant) -> None:
    seconds = last.snapshot.samples_unix - first.snapshot.samples_unix
    for name, metric in [
        ("requests/s", "vllm:request_success_total"),
        ("tokens in/s", "vllm:prompt_tokens_total"),
        ("tokens out/s", "vllm:generation_tokens_total"),
    ]:
        assert last(metric) > first(metric)
        same(beside(text, name), (last(metric) - first(metric)) / seconds)
    same(beside(text, "running"), last("vllm:num_requests_running"))
    same(beside(text, "waiting"), last("vllm:num_requests_waiting"))
    same(beside(text, "kv used"), last("vllm:kv_cache_usage_perc"))
    same(beside(text, "cache hits"), hits(first, last))
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in ("realtime", "standard"):
            for shown, window in zip(words[1:4], ("5m", "1h", "6h"), strict=True):
                labels = {"class": words[0], "slo": "all", "window": window}
                same(shown, last("gatewayd_slo_burn_rate", **labels))


def hits(first: Instant, last: Instant) -> float:
    asked, found = (
        last(name) - first(name)
        for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    )
    assert 0 < found < asked
    return found / asked


def kv(text: str, first: Instant, last: Instant) -> None:
    pages = {
        state: float(beside(text, state))
        for state in ("free", "cached", "active", "shared", "pinned")
    }
    assert pages["free"] == last("gatewayd_kv_pages", state="free") < 700
    assert pages["cached"] + pages["pinned"] == last("gatewayd_kv_pages", state="cached") > 0
    assert pages["active"] + pages["shared"] == last("gatewayd_kv_pages", state="held")
    same(beside(text, "cache hits"), hits(first, last))


def slo(text: str, first: Instant, last: Instant) -> None:
    seen = set()
    for words in map(str.split, text.splitlines()):
        if len(words) < 11 or words[1] not in ("ttft", "tpot", "e2e", "all"):
            continue
        labels = {"class": words[0], "slo": words[1]}
        seen.add((words[0], words[1]))
        good, bad = (last(f"gatewayd_slo_{kind}_total", **labels) for kind in ("good", "bad"))
        objective = last("gatewayd_slo_objective", **{"class": words[0]})
        if words[2] != "-":
            same(words[2], 1000 * last("gatewayd_slo_target_seconds", **labels))
        same(words[3], objective)
        same(words[9], good)
        same(words[10], bad)
        if good + bad:
            same(words[4], good / (good + bad))
            same(words[5], 1 - bad / ((1 - objective) * (good + bad)))
        for shown, window in zip(words[6:9], ("5m", "1h", "6h"), strict=True):
            same(shown, last("gatewayd_slo_burn_rate", **labels, window=window))
    assert {("standard", "ttft"), ("standard", "all"), ("realtime", "ttft")} <= seen


def tenants(text: str, first: Instant, last: Instant) -> None:
    rows = [words for words in map(str.split, text.splitlines()) if words and words[0] in TENANTS]
    rows = [words for words in rows if len(words) > 10]  # without the keys
    assert len(rows) == len(TENANTS)
    columns = list(zip(*rows, strict=True))

    def used(column: tuple[str, ...]) -> float:
        return sum(float(shown.partition("/")[0]) for shown in column)

    assert used(columns[1]) == last("vllm:num_requests_running")
    assert used(columns[2]) == last("vllm:num_requests_waiting")
    done = last("vllm:request_success_total")
    tokens = last("vllm:prompt_tokens_total") + last("vllm:generation_tokens_total")
    assert used(columns[4]) == done > 0  # of the last minute, as all is here
    assert used(columns[5]) == tokens
    assert used(columns[-1]) == last("gatewayd_kv_pages", state="cached")


async def instants(folder: Path) -> tuple[Instant, Instant]:
    """Before and after some work."""
    async with daemon(folder) as (url, socket):
        live = DaemonSource(socket)
        keys = await keys_of(live)
        body = {"tenant": "acme", "name": "prometheus", "scopes": ["metrics:read"]}
        watcher = await live.call("POST", "/admin/keys", body)
        async with aiohttp.ClientSession() as session:
            session.headers["authorization"] = f"Bearer {watcher['secret']}"
            first = await instant(session, url, live)
            await work(session, url, keys)
            last = await instant(session, url, live)
        await live.close()
    return first, last


async def test_what_is_shown_is_what_metrics_say(tmp_path: Path) -> None:
    first, last = await instants(tmp_path)
    file = tmp_path / "seen.jsonl"
    await asyncio.to_thread(file.write_bytes, line_of(first.snapshot) + line_of(last.snapshot))
    console = Console(Recorded(file), interval=0.01)
    async with console.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: len(console.shown.history) == 2)
        for key, check in [("1", overview), ("4", kv), ("6", slo), ("7", tenants)]:
            await pilot.press(key)
            await pilot.pause(0.1)
            text = text_of(console)
            try:
                check(text, first, last)
            except AssertionError as error:
                raise AssertionError(f"{error} in\n{text}") from error
