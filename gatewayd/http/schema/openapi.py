"""``/openapi.json``, made from the table of request fields."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema

from gatewayd.http.schema.chat import ChatRequest
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.http.schema.fields import (
    Ignored,
    Noted,
    RequestTable,
    Unsupported,
    support_of,
)
from gatewayd.http.schema.tokenize import DetokenizeRequest, TokenizeRequest
from gatewayd.http.schema.watermark import DetectRequest


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    summary: str
    request: type[RequestTable] | None = None
    streams: bool = False
    content: str = "application/json"


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a conversation", ChatRequest, True),
    Operation("post", "/v1/completions", "Continue a text", CompletionRequest, True),
    Operation("get", "/v1/models", "List the served models"),
    Operation("get", "/v1/models/{model}", "Describe a served model"),
    Operation("post", "/tokenize", "Text to token ids", TokenizeRequest),
    Operation("post", "/v1/tokenize", "Text to token ids", TokenizeRequest),
    Operation("post", "/detokenize", "Token ids to text", DetokenizeRequest),
    Operation("post", "/v1/detokenize", "Token ids to text", DetokenizeRequest),
    Operation("post", "/v1/watermark/detect", "Find the mark of answers", DetectRequest),
    Operation("get", "/livez", "Whether the process answers"),
    Operation("get", "/readyz", "Whether a request would be served now"),
    Operation("get", "/health", "The same as /readyz"),
    Operation("get", "/version", "The daemon's version"),
    Operation("get", "/metrics", "Figures for Prometheus", content="text/plain"),
    Operation("get", "/openapi.json", "This document"),
)

TABLES: tuple[type[RequestTable], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    DetectRequest,
)

_REF = "#/components/schemas/{model}"
_PUBLIC = ("/livez", "/readyz", "/health")
_STATUSES = {
    "400": "A field is wrong",
    "401": "No key or a wrong one",
    "404": "No such model",
    "413": "The body is too large",
    "415": "The body is not plain JSON",
    "500": "The engine or the gateway failed",
    "503": "No room or no engine now; see retry-after",
}


def support_name(table: type[RequestTable], field: str) -> str:
    """``served``, ``noted``, ``ignored`` or ``refused``."""
    match support_of(table, field):
        case Noted():
            return "noted"
        case Ignored():
            return "ignored"
        case Unsupported():
            return "refused"
    return "served"


def document(version: str) -> dict[str, Any]:
    """The whole OpenAPI 3.1 document."""
    _, definitions = models_json_schema(
        [(table, "validation") for table in TABLES], ref_template=_REF
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for table in TABLES:
        for name, schema in schemas[table.__name__]["properties"].items():
            schema["x-gateway-support"] = support_name(table, name)
    schemas["Error"] = _error_schema()
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
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
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content: {"schema": {}}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.method + operation.path.translate(_TO_NAME),
        "responses": {"200": {"description": "Served", "content": content}},
    }
    if operation.path in _PUBLIC:
        described["security"] = []
    if "{model}" in operation.path:
        described["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
        described["responses"]["404"] = _error("404")
    if operation.path in ("/readyz", "/health"):
        described["responses"]["503"] = {"description": "Not ready"}
    if operation.request is not None:
        reference = {"$ref": _REF.format(model=operation.request.__name__)}
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
        described["responses"].update({status: _error(status) for status in _STATUSES})
    return described


_TO_NAME = str.maketrans({"/": "_", ".": "_", "{": None, "}": None})


def _error(status: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Error")}
    return {"description": _STATUSES[status], "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    fields = {"message": text, "type": text, "param": nullable, "code": text}
    inner = {"type": "object", "required": list(fields), "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": inner}}
