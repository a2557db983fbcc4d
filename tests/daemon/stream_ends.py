"""Ends of streams in each API, and whether one failed before."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx

ANTHROPIC_TYPES = frozenset(
    ("api_error", "invalid_request_error", "overloaded_error", "rate_limit_error")
)
"""Of errors behind the first event."""


class Told(NamedTuple):
    """What a stream told.

    Attributes:
        events: its objects, in order.
        errors: codes of what went wrong in it, or what stands for a code in its API.
        is_over: whether its last words are those of a complete answer, or of an error.
    """

    events: list[dict[str, Any]]
    errors: list[str]
    is_over: bool


def told_by(path: str, answer: httpx.Response) -> Told | None:
    """Read a stream; None for an answer that is none."""
    kind = answer.headers["content-type"].partition(";")[0]
    if kind == "application/x-ndjson":
        return _lines(answer.text)
    if kind != "text/event-stream":
        return None
    data = [
        line.removeprefix("data: ")
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    if path in ("/generate_stream", "/"):
        return _tokens([json.loads(one) for one in data])
    if path == "/v1/messages":
        return _messages([json.loads(one) for one in data])
    if path == "/v1/responses":
        return _response([json.loads(one) for one in data])
    return _chunks(data)


def _lines(text: str) -> Told:
    """Ollama's: an error is a sentence alone."""
    events = [json.loads(line) for line in text.splitlines()]
    errors = [event["error"] for event in events if "error" in event]
    return Told(events, errors, "error" in events[-1] or events[-1]["done"])


def _tokens(events: list[dict[str, Any]]) -> Told:
    """TGI's: an error is a sentence and a type."""
    errors = [event["error"] for event in events if "error" in event]
    return Told(events, errors, "error" in events[-1] or events[-1]["details"] is not None)


def _messages(events: list[dict[str, Any]]) -> Told:
    errors = [event["error"]["type"] for event in events if event["type"] == "error"]
    return Told(events, errors, events[-1]["type"] in ("error", "message_stop"))


def _response(events: list[dict[str, Any]]) -> Told:
    ends = ("response.completed", "response.incomplete", "response.failed")
    failed = [event for event in events if event["type"] == "response.failed"]
    errors = [event["response"]["error"]["code"] for event in failed]
    errors += [event["code"] for event in events if event["type"] == "error"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return Told(events, errors, events[-1]["type"] in ends)


def _chunks(data: list[str]) -> Told:
    events = [json.loads(one) for one in data if one != "[DONE]"]
    errors = [event["error"]["code"] for event in events if "error" in event]
    return Told(events, errors, data[-1] == "[DONE]")
