"""Bad requests: hundreds against a real daemon, no 500 and no effect on the engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from tests.gatewayd.gateway import CHAT, COMPLETION
from tests.gatewayd.http.schema.malformed_bodies import BROKEN_JSON, bad_fields, with_field

NANO = ("-m", "gatewayd", "serve", "--port", "0")
JSON = {"content-type": "application/json"}
HARMLESS_BUT_ODD: list[dict[str, Any]] = [
    {"temperature": 1e-46, "max_tokens": 3},
    {"temperature": 2, "top_p": 1e-12, "top_k": 1, "min_p": 1.0, "max_tokens": 3},
    {"logit_bias": {str(i): -100 for i in range(300)}, "max_tokens": 3},
    {"seed": -(2**63), "temperature": 1, "max_tokens": 3},
    {"repetition_penalty": 2.0, "frequency_penalty": -2, "presence_penalty": 2, "max_tokens": 3},
    {"stop_token_ids": list(range(16)), "min_tokens": 3, "max_tokens": 3},
    {"extra_args": {"x": "y"}, "max_tokens": 3},
    {"n": 16, "temperature": 1, "max_tokens": 3},
    {"logprobs": 5, "echo": True, "max_tokens": 0},
    {"prompt": [4095], "max_tokens": 3},
    {"prompt": "\u0000", "max_tokens": 3},
    {"prompt": "<|im_end|>" * 50, "max_tokens": 3},
]


async def test_bad_requests_do_not_reach_the_engine(start_daemon: Callable[..., Any]) -> None:
    daemon = start_daemon(NANO, env={"GATEWAYD_ENGINE__THREADS": "1"})
    pid = daemon.readyz()[1]["replicas"][0]["pid"]
    rng = random.Random(3)
    bodies = [
        (path, with_field(body, bad))
        for path, table, body in (
            ("/v1/chat/completions", ChatRequest, CHAT),
            ("/v1/completions", CompletionRequest, COMPLETION),
        )
        for bad in bad_fields(table)
    ]
    bodies = rng.sample(bodies, 300)
    bodies += [("/v1/completions", content) for content in BROKEN_JSON]
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=daemon.url, timeout=30) as http:
        for path, content in bodies:
            response = await http.post(path, content=content, headers=JSON)
            statuses[response.status_code] += 1
            assert "error" in response.json()
        for odd in HARMLESS_BUT_ODD:
            response = await http.post("/v1/completions", json={**COMPLETION, **odd})
            assert response.status_code == 200, (odd, response.text)
        good = await http.post("/v1/chat/completions", json=CHAT)
    assert set(statuses) == {400}
    assert sum(statuses.values()) > 300
    assert good.status_code == 200
    replica = daemon.readyz()[1]["replicas"][0]
    assert (replica["pid"], replica["restarts"]) == (pid, 0)
    assert daemon.stop() == 0
