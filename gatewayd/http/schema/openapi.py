"""``/openapi.json``, generated from the request schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema

from gatewayd.http.schema.batches import BatchRequest
from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.decisions import DecisionRequest
from gatewayd.http.schema.embeddings import EmbeddingRequest
from gatewayd.http.schema.rerank import RerankRequest, ScoreRequest
from gatewayd.http.schema.responses import InputTokensRequest, ResponseRequest
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd.http.schema.watermark import DetectRequest
from gatewayd_hooks.requests.tables import RequestTable


class Operation(NamedTuple):
    """Operation of the API: one method of one path."""

    method: str
    path: str
    summary: str
    request: type[RequestTable] | None = None
    streams: bool = False
    content: str = "application/json"
    owner: str = ""
    """Protocol plugin that serves it, with its own response and error formats; empty for none."""
    query: dict[str, dict[str, Any]] = {}
    """Query parameters and their schemas."""
    form: dict[str, Any] | None = None
    """Schema of a form body."""


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Create a chat completion", ChatRequest, True),
    Operation("post", "/v1/completions", "Create a completion", CompletionRequest, True),
    Operation("post", "/v1/chat/completions/render", "Render the prompt of a chat", ChatRequest),
    Operation(
        "post", "/v1/completions/render", "Render the prompts of a completion", CompletionRequest
    ),
    Operation("post", "/v1/embeddings", "Create embeddings", EmbeddingRequest),
    Operation(
        "post", "/v1/decisions", "Classify and score by token probabilities", DecisionRequest
    ),
    Operation("post", "/v1/rerank", "Rerank documents by a query", RerankRequest),
    Operation("post", "/v2/rerank", "Rerank documents by a query", RerankRequest),
    Operation("post", "/rerank", "Rerank documents by a query", RerankRequest),
    Operation("post", "/v1/score", "Score the similarity of texts", ScoreRequest),
    Operation("post", "/score", "Score the similarity of texts", ScoreRequest),
    Operation("get", "/v1/models", "List the served models"),
    Operation("get", "/v1/models/{model}", "Describe a served model"),
    Operation("post", "/tokenize", "Tokenize text", TokenizeRequest),
    Operation("post", "/v1/tokenize", "Tokenize text", TokenizeRequest),
    Operation("post", "/detokenize", "Detokenize token ids", DetokenizeRequest),
    Operation("post", "/v1/detokenize", "Detokenize token ids", DetokenizeRequest),
    Operation("post", "/v1/watermark/detect", "Detect the watermark of answers", DetectRequest),
    Operation("get", "/livez", "Liveness probe"),
    Operation("get", "/readyz", "Readiness probe"),
    Operation("get", "/health", "Alias of /readyz"),
    Operation("get", "/version", "Version of the daemon"),
    Operation("get", "/metrics", "Prometheus metrics", content="text/plain"),
    Operation("get", "/v1/gateway/compat", "Compatibility of each request field"),
    Operation("get", "/openapi.json", "This OpenAPI document"),
)

TABLES: tuple[type[RequestTable], ...] = (
    ChatRequest,
    CompletionRequest,
    DecisionRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    DetokenizeRequest,
    DetectRequest,
    BatchRequest,
    ResponseRequest,
    InputTokensRequest,
)

_References = dict[type[RequestTable], dict[str, Any]]
_Schemas = dict[str, dict[str, Any]]

_REF = "#/components/schemas/{model}"
_PUBLIC = ("/livez", "/readyz", "/health")
_STATUSES = {
    "400": "Invalid request: a field is wrong",
    "401": "Missing or invalid API key",
    "404": "Not found",
    "409": "Conflict with the current state",
    "413": "Request body too large",
    "415": "Request body is not plain JSON",
    "429": "Rate limit, quota or budget of this key exceeded; see retry-after",
    "500": "Internal error of the engine or the gateway",
    "503": "Queue full or no engine ready; see retry-after",
}
_LATE = "504"
_STATUSES_OF_SOME = {_LATE: "The request waited longer than its queue_timeout"}


def document(version: str, more: Sequence[Operation] = ()) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document.

    Args:
        version: of the daemon.
        more: additional operations, of the store and of protocol plugins.
    """
    operations = (*OPERATIONS, *more)
    references, schemas = _schemas(TABLES, "")
    for owner in dict.fromkeys(each.owner for each in more if each.owner):
        asked = [each.request for each in more if each.owner == owner and each.request is not None]
        theirs, described = _schemas(tuple(dict.fromkeys(asked)), f"{owner}.")
        references, schemas = references | theirs, schemas | described
    schemas["Error"] = _error_schema()
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "gatewayd", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty requirement: servers without keys.
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _schemas(tables: Sequence[type[RequestTable]], prefix: str) -> tuple[_References, _Schemas]:
    """Return the schemas of tables and of all nested ones, with prefixed names."""
    found, definitions = models_json_schema(
        [(table, "validation") for table in tables],
        ref_template=_REF.format(model=f"{prefix}{{model}}"),
    )
    references = {table: schema for (table, _), schema in found.items()}
    named = {f"{prefix}{name}": schema for name, schema in definitions.get("$defs", {}).items()}
    return references, named  # type: ignore[return-value]


def _operation(operation: Operation, references: _References) -> dict[str, Any]:
    is_foreign = bool(operation.owner)
    content: dict[str, Any] = {"*/*" if is_foreign else operation.content: {"schema": {}}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.method + operation.path.translate(_TO_NAME),
        "responses": {"200": {"description": "Success", "content": content}},
    }
    if is_foreign:
        described["responses"]["default"] = {"description": "An error in this API's form"}
        if operation.method in ("post", "delete"):
            described["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    described["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", operation.path)
    ]
    if described["parameters"] and not is_foreign:
        described["responses"].update({status: _error(status) for status in ("404", "503")})
    if operation.method in ("post", "delete") and described["parameters"]:
        described["responses"]["409"] = _error("409")
    if operation.query:
        described["parameters"] += [
            {"name": name, "in": "query", "schema": schema}
            for name, schema in operation.query.items()
        ]
        described["responses"].update({status: _error(status) for status in ("400", "503")})
    if operation.path in _PUBLIC:
        described["security"] = []
    if operation.path in ("/readyz", "/health"):
        described["responses"]["503"] = {"description": "Not ready"}
    body = None
    if operation.form is not None:
        body = {"multipart/form-data": {"schema": operation.form}}
    elif operation.request is not None:
        body = {"application/json": {"schema": references[operation.request]}}
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    if body is not None and not is_foreign:
        described["responses"].update({status: _error(status) for status in _STATUSES})
        fields = () if operation.request is None else operation.request.model_fields
        if operation.streams and "queue_timeout" in fields:
            described["responses"][_LATE] = _error(_LATE)
    return described


_TO_NAME = str.maketrans({"/": "_", ".": "_", "{": None, "}": None})


def _error(status: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Error")}
    text = (_STATUSES | _STATUSES_OF_SOME)[status]
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    fields = {"message": text, "type": text, "param": nullable, "code": text}
    inner = {"type": "object", "required": list(fields), "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": inner}}
