"""Protocol field tables: describe what the routes do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gatewayd.http.schema.docs import built_in_tables
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.requests.checking import check
from gatewayd_hooks.requests.refusal import RequestRefusal
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_anthropic.tables import CountRequest, MessagesRequest
from gatewayd_proto_ollama import tables
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from gatewayd_proto_tgi.tables import TgiCompatRequest, TgiGenerateRequest
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.http.schema.malformed_bodies import bad_fields, with_field
from tests.gatewayd.http.test_operations import references

JSON = {"content-type": "application/json"}
HI = [{"role": "user", "content": "hi"}]
CASES: dict[str, tuple[type[RequestTable], dict[str, Any]]] = {
    "/v1/messages": (MessagesRequest, {"model": "nano", "max_tokens": 4, "messages": HI}),
    "/v1/messages/count_tokens": (CountRequest, {"model": "nano", "messages": HI}),
    "/api/chat": (tables.OllamaChatRequest, {"model": "nano", "messages": HI, "stream": False}),
    "/api/generate": (tables.GenerateRequest, {"model": "nano", "prompt": "a", "stream": False}),
    "/api/embed": (tables.EmbedRequest, {"model": "nano"}),
    "/api/embeddings": (tables.EmbeddingsRequest, {"model": "nano"}),
    "/generate": (TgiGenerateRequest, {"inputs": "a"}),
    "/": (TgiCompatRequest, {"inputs": "a"}),
    "/api/show": (tables.ShowRequest, {"model": "nano", "name": "nano"}),
}


def served(text: TextModel) -> Any:
    protocols: Any = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
        ("tgi", Tgi(TgiConfig())),
    ]
    return running(text, FakeFleet(says([100])), protocols=protocols)


def error_of(answer: Any) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else str(error["message"])


def sentence_of(table: type[RequestTable], body: dict[str, Any]) -> str | None:
    """Why a table refuses a body; None if it does not."""
    try:
        check(table, body)
    except RequestRefusal as refusal:
        return refusal.message
    return None


async def test_the_document_has_them_beside_our_own(text: TextModel) -> None:
    async with served(text) as gateway:
        document = (await gateway.http.get("/openapi.json")).json()
    schemas, prefix = document["components"]["schemas"], "#/components/schemas/"
    assert {one.removeprefix(prefix) for one in references(document)} <= schemas.keys()
    assert schemas["ollama.OllamaChatRequest"] != schemas["ChatRequest"]
    assert built_in_tables().keys() <= schemas.keys()
    for path, (table, _) in CASES.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].removeprefix(prefix)
        assert schemas[name]["properties"].keys() == table.known
    options = schemas["ollama.Options"]["properties"]
    assert options["num_ctx"]["x-gateway-support"] == "ignored"
    assert {"maximum": 2, "minimum": 0, "type": "number"} in options["temperature"]["anyOf"]


async def ask(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    return await gateway.http.post(path, json=body)


@pytest.mark.parametrize("path", CASES)
async def test_the_report_is_true(text: TextModel, path: str) -> None:
    table, good = CASES[path]
    something = {"asks": "for something"}
    async with served(text) as gateway:
        routes = (await gateway.http.get("/v1/gateway/compat")).json()["routes"]
        posts = [one for one in routes if one["method"] == "POST"]
        (fields,) = [one["fields"] for one in posts if one["path"] == path]
        assert [field["name"] for field in fields] == list(table.model_fields)
        for field in fields:
            name = field["name"]
            if field["support"] == "refused":
                answer = await ask(gateway, path, {**good, name: something})
                assert answer.status_code == 400
                assert error_of(answer) == f"{name} is not supported: {field['reason']}"
                for value in field["accepted"]:
                    assert (await ask(gateway, path, {**good, name: value})).status_code == 200
                continue
            if field["support"] in ("ignored", "noted"):
                answer = await ask(gateway, path, {**good, name: something})
                named = answer.headers.get("x-gateway-ignored-params")
                assert (answer.status_code, named) == (
                    200,
                    name if field["support"] == "ignored" else None,
                )
            if not field["required"]:
                answer = await ask(gateway, path, {**good, name: field["default"]})
                assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("path", CASES)
async def test_every_field_refuses_what_its_table_does_not_allow(
    text: TextModel, path: str
) -> None:
    table, good = CASES[path]
    count = 0
    async with served(text) as gateway:
        for bad in bad_fields(table):
            content = with_field(good, bad)
            answer = await gateway.http.post(path, content=content, headers=JSON)
            try:
                expected = sentence_of(table, msgspec.json.decode(content))
            except msgspec.DecodeError as error:
                expected = f"the body is not JSON: {error}"
            if expected is not None:
                count += 1
                assert (answer.status_code, error_of(answer)) == (400, expected)
        assert gateway.fleet.jobs == [] or path.startswith("/api")
        assert (await ask(gateway, path, good)).status_code == 200
    assert count >= (9 if path in ("/api/show", "/generate", "/") else 18)


async def test_a_field_of_a_field_is_in_the_report(text: TextModel) -> None:
    async with served(text) as gateway:
        routes = (await gateway.http.get("/v1/gateway/compat")).json()["routes"]
    (chat,) = [one["fields"] for one in routes if one["path"] == "/api/chat"]
    (options,) = [field["fields"] for field in chat if field["name"] == "options"]
    told = {field["name"]: field for field in options}
    assert told["num_ctx"]["support"] == "ignored"
    assert told["stop"]["cost"] == "text is searched token by token"


def test_blocks_within_blocks_are_counted_and_their_depth_is_nothing() -> None:
    texts = [{"type": "text", "text": "a"}] * 1000
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i"}]}
    body = {"model": "m", "max_tokens": 1, "messages": [result]}
    full = {"role": "user", "content": [{**result["content"][0], "content": texts}]}  # type: ignore[dict-item]
    assert sentence_of(MessagesRequest, {**body, "messages": [full] * 32}) is None
    told = sentence_of(MessagesRequest, {**body, "messages": [full] * 33})
    assert (
        told == "messages: more than 32768 parts and calls, the maximum of all messages: join texts"
    )
    deep: Any = "a"
    for _ in range(5000):
        deep = [{"type": "tool_result", "tool_use_id": "i", "content": deep}]
    told = sentence_of(MessagesRequest, {**body, "messages": [{"role": "user", "content": deep}]})
    place = "messages[0].content[0].content[0].type"
    assert told == f"{place} is \"tool_result\"; it must be 'text' or 'document'"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("format", "'json', or an object"),
        ("think", "'low', 'medium', 'high' or 'max', or true or false"),
    ],
)
def test_a_wrong_word_is_told_what_else_there_is(field: str, words: str) -> None:
    told = sentence_of(tables.OllamaChatRequest, {"model": "nano", field: "much"})
    assert told == f'{field} is "much"; it must be {words}'
