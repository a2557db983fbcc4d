"""Operations on persistent resources, for ``/openapi.json`` of daemons with a store."""

from __future__ import annotations

from typing import Any

from gatewayd.http.schema.batches import BatchRequest
from gatewayd.http.schema.openapi import Operation
from gatewayd.http.schema.responses import InputTokensRequest, ResponseRequest


def _page(most: int) -> dict[str, dict[str, Any]]:
    return {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": most},
        "order": {"enum": ["asc", "desc"]},
    }


_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["batch", "user_data"]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
}

DURABLE = (
    Operation("post", "/v1/files", "Upload a file", form=_FORM),
    Operation(
        "get", "/v1/files", "List files", query={**_page(10_000), "purpose": {"type": "string"}}
    ),
    Operation("get", "/v1/files/{file_id}", "Retrieve the metadata of a file"),
    Operation("delete", "/v1/files/{file_id}", "Delete a file"),
    Operation(
        "get",
        "/v1/files/{file_id}/content",
        "Download a file",
        content="application/octet-stream",
    ),
    Operation("post", "/v1/batches", "Create a batch", BatchRequest),
    Operation("get", "/v1/batches", "List batches", query=_page(100)),
    Operation("get", "/v1/batches/{batch_id}", "Retrieve a batch"),
    Operation("post", "/v1/batches/{batch_id}/cancel", "Cancel a batch"),
    Operation(
        "get",
        "/v1/gateway/usage",
        "Usage and remaining budget of the key's tenant",
        query={"since": {"type": "integer", "minimum": 0}},
    ),
    Operation("post", "/v1/responses", "Create a response", ResponseRequest, True),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "Count the input tokens of a response",
        InputTokensRequest,
    ),
    Operation("get", "/v1/responses/{response_id}", "Retrieve a response"),
    Operation("delete", "/v1/responses/{response_id}", "Delete a response"),
    Operation("post", "/v1/responses/{response_id}/cancel", "Cancel a background response"),
    Operation(
        "get",
        "/v1/responses/{response_id}/input_items",
        "List the input items of a response",
        query=_page(100),
    ),
)
