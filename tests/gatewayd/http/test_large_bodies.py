"""Large invalid bodies: refused at once, without blocking the event loop."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd.errors import GatewayError
from gatewayd.http.parse import parse
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd_hooks.requests.num_values import MOST_VALUES
from gatewayd_hooks.requests.tables import RequestTable

SIZE = 2 << 20
FEW_ENOUGH = MOST_VALUES // 6
"""Objects of up to five values, which are not refused for their number: ``test_num_values``."""
TURN = [{"role": "user", "content": "a"}]


def many(entry: Any) -> list[Any]:
    most = SIZE if isinstance(entry, int) else FEW_ENOUGH
    return [entry] * min(SIZE // (len(json.dumps(entry)) + 2), most)


def pairs(value: Any) -> dict[str, Any]:
    return {str(i): value for i in range(FEW_ENOUGH)}


@pytest.mark.parametrize(
    ("table", "fields", "param", "limit"),
    [
        (CompletionRequest, lambda: {"prompt": many(1)}, None, None),
        (CompletionRequest, lambda: {"prompt": many(1) * 4}, "prompt", "1048576"),
        (CompletionRequest, lambda: {"prompt": many(-1)}, "prompt[0]", "minimum is 0"),
        (CompletionRequest, lambda: {"prompt": many(True)}, "prompt[0]", "an integer"),
        (CompletionRequest, lambda: {"prompt": many("")}, "prompt", "128"),
        (CompletionRequest, lambda: {"prompt": many([])}, "prompt[0]", "at least 1"),
        (CompletionRequest, lambda: {"prompt": many([1])}, "prompt", "128"),
        (CompletionRequest, lambda: {"prompt": [many("")]}, "prompt[0][0]", "an integer"),
        (CompletionRequest, lambda: {"prompt": many({})}, "prompt[0]", "an integer"),
        (CompletionRequest, lambda: {"prompt": "a", "stop": many("")}, "stop", "16"),
        (
            CompletionRequest,
            lambda: {"prompt": "a", "stop_token_ids": many("")},
            *["stop_token_ids", "16"],
        ),
        (
            CompletionRequest,
            lambda: {"prompt": "a", "logit_bias": pairs("a")},
            "logit_bias",
            "1024",
        ),
        (CompletionRequest, lambda: {"prompt": "a", "extra_args": pairs({})}, "extra_args", "16"),
        (ChatRequest, lambda: {"messages": TURN, "metadata": pairs(1)}, "metadata", "16"),
        (ChatRequest, lambda: {"messages": many(1)}, "messages[0]", "an object"),
        (ChatRequest, lambda: {"messages": many(TURN[0])}, "messages", "4096"),
        (
            ChatRequest,
            lambda: {"messages": [{"role": "user", "content": many(1)}]},
            "messages",
            "32768",
        ),
        (
            ChatRequest,
            lambda: {"messages": [{"role": "user", "content": [1] * 1024}] * 30},
            "messages[0].content[0]",
            "an object",
        ),
        (TokenizeRequest, lambda: {"messages": many(1)}, "messages[0]", "an object"),
        (DetokenizeRequest, lambda: {"tokens": many("")}, "tokens[0]", "an integer"),
    ],
)
@pytest.mark.flaky(reruns=2)
def test_a_large_wrong_body_is_refused_at_its_first_fault(
    table: type[RequestTable],
    fields: Callable[[], dict[str, Any]],
    param: str | None,
    limit: str | None,
) -> None:
    body = json.dumps({"model": "m", **fields()}).encode()
    refusal: GatewayError | None = None
    began = time.thread_time()
    try:
        parse(table, body)
    except GatewayError as error:
        refusal = error
    # Telling every fault took 5 to 9 s here, stopping at the first takes 0.1.
    assert time.thread_time() - began < 2.0
    assert (refusal and refusal.param) == param
    assert limit is None or (refusal and limit in refusal.message)


def test_the_collector_goes_on_after_a_body_good_or_bad() -> None:
    parse(ChatRequest, json.dumps({"model": "m", "messages": TURN}).encode())
    assert gc.isenabled()
    with pytest.raises(GatewayError):
        parse(ChatRequest, b"{")
    assert gc.isenabled()
