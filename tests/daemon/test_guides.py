"""Guided decoding: answers follow their grammar, and impossible grammars are refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest

from tests.daemon.conftest import NANO_DAEMON
from tests.plugins.guides.guides import longest_blank

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["module", "class"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
SCHEMAS: list[dict[str, Any]] = [
    {"response_format": FORMAT},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"response_format": {"type": "json", "value": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    {"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"},
    {"json_schema": SCHEMA},
]
EXPRESSIONS: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "[a-f]{4}-[0-9]{2}"}},
    {"guided_regex": "[a-f]{4}-[0-9]{2}"},
    {"regex": "[a-f]{4}-[0-9]{2}"},
    {"response_format": {"type": "regex", "value": "[a-f]{4}-[0-9]{2}"}},
]
JSON = {"content-type": "application/json"}
DEEP_JSON = (
    '{"model": "nano", "prompt": "x", "guided_json": ' + '{"a":' * 10_000 + "1" + "}" * 10_001
)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


MANY = {
    "allOf": [
        {"anyOf": [{"properties": {f"p{i}_{j}": {"type": "string"}}} for j in range(8)]}
        for i in range(12)
    ]
}
LONG = {
    "type": "string",
    "pattern": "^(a|aa|aaa|aaaa)*(b|bb){500}$",
    "minLength": 5000,
    "maxLength": 100_000,
}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"type": "no such type"}}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.structures"),
    ({"guided_regex": "[a-"}, "guided_regex"),
    ({"guided_regex": "(a)\\1"}, "guided_regex"),
    ({"guided_grammar": "no grammar {{"}, "guided_grammar"),
    ({"guided_choice": []}, "guided_choice"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"response_format": FORMAT, "regex": "a"}, "regex"),
    ({"guided_json": nested(200)}, "guided_json"),
    ({"guided_json": MANY}, "guided_json"),
    ({"guided_json": LONG}, "guided_json"),
    ({"guided_regex": "a" * 200_000}, "guided_regex"),
]


async def test_every_spelling(start_daemon: Callable[..., Any]) -> None:
    daemon = start_daemon(NANO_DAEMON, env={"GATEWAYD_ENGINE__THREADS": "1"})
    pid = daemon.engine_pid
    chat = {"model": "nano", "messages": [{"role": "user", "content": "Give JSON of asyncio."}]}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:

        async def ask(**fields: Any) -> tuple[str, dict[str, Any]]:
            body = {**chat, "temperature": 1.0, "max_tokens": 200, **fields}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "stop", answer.text
            return choice["message"]["content"], dict(answer.headers)

        for fields in SCHEMAS:
            said, headers = await ask(**fields)
            jsonschema.validate(json.loads(said), SCHEMA)
            assert longest_blank(said) <= 1, said
            ignored = "guided_decoding_backend" in fields
            assert ("guided_decoding_backend" in str(headers)) == ignored
        for fields in EXPRESSIONS:
            said, _ = await ask(**fields)
            assert re.fullmatch("[a-f]{4}-[0-9]{2}", said)
        said, _ = await ask(guided_choice=["red", "green"])
        assert said in ("red", "green")
        for field in ("ebnf", "grammar", "guided_grammar"):
            said, _ = await ask(**{field: 'start: "a" ("b" | "c") "!"'})
            assert re.fullmatch("a[bc]!", said)
        # Of free text nobody knows when it ends, but for the likeliest.
        said, _ = await ask(response_format={"type": "json_object"}, temperature=0)
        assert isinstance(json.loads(said), dict)
        assert longest_blank(said) <= 1, said
        said, _ = await ask(response_format={"type": "text"}, temperature=0)
        plain = {"model": "nano", "prompt": "import", "max_tokens": 50, "n": 3, **EXPRESSIONS[1]}
        answer = (await http.post("/v1/completions", json=plain)).json()
        assert all(re.fullmatch("[a-f]{4}-[0-9]{2}", one["text"]) for one in answer["choices"])

        for fields, param in BAD:
            began = time.monotonic()
            response = await http.post("/v1/chat/completions", json={**chat, **fields})
            seconds = time.monotonic() - began
            assert response.status_code == 400, (fields, response.text)
            assert response.json()["error"]["param"] == param, response.text
            assert param.split(".")[0] in response.json()["error"]["message"]
            assert seconds < 10, (fields, seconds)
        response = await http.post("/v1/completions", content=DEEP_JSON, headers=JSON)
        assert response.status_code == 400
        assert "nested" in response.json()["error"]["message"]
        assert (await http.post("/v1/chat/completions", json={**chat, "max_tokens": 3})).is_success
    assert daemon.engine_pid == pid
    assert daemon.stop() == 0
    assert "no guide" not in daemon.log.read_text()


def test_the_list_of_bad_ones_is_long_enough() -> None:
    assert len(BAD) >= 12
    with pytest.raises(RecursionError):
        json.loads(DEEP_JSON)
