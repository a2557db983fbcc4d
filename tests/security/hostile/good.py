"""Well-behaved tenant: its answers, latency and expected charges."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import httpx

from tests.security.hostile.box import Box

PROMPT_TOKENS, MAX_TOKENS = 40, 6
LONG_CHARS, LONG_EACH = 2500, 4
"""Every fourth prompt is a text that is long enough for the tokenizer's threads."""


@dataclass
class Seen:
    """What it saw.

    Attributes:
        firsts: seconds to the first token, of each request.
        live: seconds of health checks.
        errors: everything that was not as it should be.
        prompt_tokens: that it has sent.
        completion_tokens: that it got.
    """

    firsts: list[float] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def p99(self) -> float:
        """Of the seconds to the first token."""
        return percentile(self.firsts, 0.99)


def percentile(values: list[float], share: float) -> float:
    """By the nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


async def behave(box: Box, seconds: float, per_second: float) -> Seen:
    """Ask for short streams at a steady pace, and whether the server lives."""
    seen, rng = Seen(), random.Random(7)
    end = time.monotonic() + seconds
    async with box.client("good") as http, asyncio.TaskGroup() as group:
        group.create_task(_watch(http, seen, end))
        due, count = time.monotonic(), 0
        while due < end:
            group.create_task(_ask(http, _prompt(rng, count), seen))
            count += 1
            due += 1 / per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return seen


def _prompt(rng: random.Random, count: int) -> str | list[int]:
    if count % LONG_EACH:
        return [rng.randrange(300, 4000) for _ in range(PROMPT_TOKENS)]
    words = "def", "return", "list", "file", "path", "open", "with"
    text = str(rng.random())
    while len(text) < LONG_CHARS:
        text += " " + rng.choice(words)
    return text


async def _ask(http: httpx.AsyncClient, prompt: str | list[int], seen: Seen) -> None:
    body = {
        "model": "nano",
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    try:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                seen.errors.append(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
                return
            is_first, is_whole = True, False
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if is_first:
                    seen.firsts.append(time.monotonic() - began)
                    is_first = False
                is_whole = line == "data: [DONE]"
                if is_whole:
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    seen.errors.append(str(event))
                elif usage := event.get("usage"):
                    seen.prompt_tokens += usage["prompt_tokens"]
                    seen.completion_tokens += usage["completion_tokens"]
            if not is_whole:
                seen.errors.append("a stream was cut")
    except httpx.HTTPError as error:
        seen.errors.append(repr(error))


async def _watch(http: httpx.AsyncClient, seen: Seen, end: float) -> None:
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            answer = await http.get("/livez")
            if answer.status_code != 200:
                seen.errors.append(f"livez: {answer.status_code}")
        except httpx.HTTPError as error:
            seen.errors.append(f"livez: {error!r}")
        seen.live.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
