"""Random engine requests of all kinds and operator actions."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.inspect_messages import Browse, Inspect
from gatewayd_engine.process.messages import (
    POOLINGS,
    Amount,
    Bump,
    Command,
    Evict,
    HoldRequest,
    PinPrefix,
    Release,
    SamplingParams,
    SetQuotas,
    Submit,
    SwapStrategy,
    TenantQuota,
)

KINDS = {
    "plain": 40,
    "guided": 10,
    "logprobs": 6,
    "stop": 8,
    "changed": 8,
    "abort": 10,
    "forks": 3,
    "pooled": 3,
    "long": 2,
    "refused": 4,
}
ACTS = {"pin": 6, "evict": 4, "look": 4, "hold": 4, "bump": 4, "quotas": 3, "swap": 2}
"""What requests are about, what operators do, and how often each comes beside the others."""
_SHARED = (5, 16, 21, 32, 40, 48, 64, 64, 80, 96, 128)
"""Tokens of what many prompts begin with."""
_OWN = (1, 1, 2, 3, 5, 17)
"""Tokens behind that, which nobody else says."""
_SCHEMAS = 300
_TENANTS = 400
_NEW_TENANT = 0.1
"""Share of the requests whose tenant was never there before."""
_SALTED = 0.03
"""Share of them whose pages nobody else may use: all that others have is computed for them."""
_FIRST, _LAST = 6, 4096
"""Token ids that prompts are made of: none of them is special."""
_SWAPS = {
    "scheduler": ["fcfs", "priority", "fair", "slo"],
    "eviction": ["lru", "lfu", "cost", "retention"],
    "preemption": ["recompute", "swap"],
    "prefix_cache": ["hash", "radix"],
    "drafter": ["ngram", ""],
}
"""What may fill each slot; empty for nothing."""
_REFUSED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 100_000},
    {"stop_token_ids": [1 << 30]},
    {"guide": ("json_schema", '{"type": "strin"}')},
)


def schema(number: int) -> str:
    """One of the JSON Schemas, small ones that differ in names and forms."""
    kinds: list[dict[str, Any]] = [
        {"type": "integer"},
        {"type": "string", "maxLength": 3 + number % 9},
        {"enum": [f"v{number}", f"w{number}"]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 1 + number % 4},
    ]
    names = {f"field_{number}_{i}": kinds[(number + i) % 4] for i in range(1 + number % 5)}
    return json.dumps({"type": "object", "properties": names, "required": list(names)})


@dataclass
class Request:
    """One that is under way.

    Attributes:
        kind: what it is about.
        message: itself.
        left: its sequences that have not ended.
        aborts_at: tokens after which it is aborted; None for never.
        tokens: of all its sequences, so far.
        end: how it ended; nobody is told of what was aborted.
    """

    kind: str
    message: Submit
    left: set[int]
    aborts_at: int | None = None
    tokens: int = 0
    end: str = "abort"


@dataclass
class Asking:
    """Draws what comes next.

    Attributes:
        actions: what operators did.
    """

    actions: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng, self._draw = random.Random(4), np.random.default_rng(4)
        self._shared = [self._some_tokens(size) for size in _SHARED]
        self._number = self._sequence = self._newcomers = 0
        self._held: list[int] = []

    def request(self) -> Request:
        """One of some kind."""
        rng = self._rng
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        wish: dict[str, Any] = {"max_tokens": rng.randint(1, 3), "temperature": rng.choice((0, 1))}
        first, self._sequence = self._sequence, self._sequence + (3 if kind == "forks" else 1)
        ids, tenant = list(range(first, self._sequence)), self._some_tenant()
        message = Submit(
            ids,
            self._prompt().tobytes(),
            SamplingParams(**(wish | self._special(kind))),
            salt=tenant.encode() if rng.random() < _SALTED else b"",
            priority=rng.randrange(3),
            tenant=tenant,
            weight=rng.choice((0.5, 1.0, 4.0)),
            deadline=rng.choice((None, 0.5, 5.0)),
            retention=rng.choice(((50, 0.0), (80, 2.0), (20, 1.0))),
        )
        aborts_at = rng.randrange(6) if kind == "abort" else None
        return Request(kind, message, set(ids), aborts_at)

    def _special(self, kind: str) -> dict[str, Any]:
        """What makes it one of its kind."""
        rng = self._rng
        match kind:
            case "guided":
                wish = {"guide": ("json_schema", schema(rng.randrange(_SCHEMAS))), "max_tokens": 4}
                behind = {"guide_behind": ("<think>", "</think>")} if rng.random() < 0.1 else {}
                return wish | behind
            case "logprobs":
                of_prompt = rng.choice((None, None, None, 2))
                return {"logprobs": rng.randrange(6), "prompt_logprobs": of_prompt}
            case "stop":
                return {"stop_token_ids": rng.sample(range(_FIRST, _LAST), 3), "max_tokens": 4}
            case "changed":
                bias = [(rng.randrange(_FIRST, _LAST), 2.0) for _ in range(4)]
                return {"logit_bias": bias, "frequency_penalty": 0.5, "min_tokens": 1, "top_k": 9}
            case "abort":
                return {"max_tokens": 40, "ignore_eos": True}
            case "pooled":
                return {"pooling": rng.choice(POOLINGS), "max_tokens": 1}
            case "long":
                return {"max_tokens": rng.randint(30, 60), "ignore_eos": True}
            case "refused":
                return rng.choice(_REFUSED)
        return {}

    def _some_tenant(self) -> str:
        if self._rng.random() < _NEW_TENANT:
            self._newcomers += 1
            return f"a tenant that comes once, number {self._newcomers}"
        return f"tenant {self._rng.randrange(_TENANTS)}" if self._rng.random() < 0.5 else ""

    def _prompt(self) -> NDArray[np.int32]:
        """What many begin with, or nothing, and something that nobody else says."""
        own = self._some_tokens(self._rng.choice(_OWN))
        if self._rng.random() < 0.05:
            return own
        return np.concatenate([self._rng.choice(self._shared), own])

    def _some_tokens(self, count: int) -> NDArray[np.int32]:
        return self._draw.integers(_FIRST, _LAST, count, np.int32)

    def action(self, open_: list[int]) -> list[Command]:
        """What an operator does, to some of the sequences that have not ended."""
        rng = self._rng
        (what,) = rng.choices(list(ACTS), list(ACTS.values()))
        self.actions[what] += 1
        self._number += 1
        some = rng.sample(open_, min(3, len(open_)))
        match what:
            case "pin":
                prompt, seconds = rng.choice(self._shared), rng.choice((0.0, 0.5, 2.0))
                return [PinPrefix(self._number, prompt.tobytes(), seconds)]
            case "evict":
                return [Evict(self._number, tenant=self._some_tenant())]
            case "look":
                return [Inspect(self._number), Browse(self._number)]
            case "hold":
                held, self._held = self._held, some
                return [Release(held), HoldRequest(some)]
            case "bump":
                return [Bump(some, rng.choice((None, 0, 2)))]
            case "quotas":
                named = sorted({self._some_tenant() for _ in range(8)})
                return [SetQuotas([TenantQuota(one, Amount(2), Amount(100)) for one in named])]
        kind = rng.choice(sorted(_SWAPS))
        name = rng.choice(_SWAPS[kind])
        return [SwapStrategy(self._number, kind, [StrategyChoice(name)] if name else [])]

    def release(self) -> Command:
        """Let those go on that are held."""
        held, self._held = self._held, []
        return Release(held)
