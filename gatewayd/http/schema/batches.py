"""Request schema of ``POST /v1/batches``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import MAX_METADATA
from gatewayd_hooks.requests.tables import RequestTable, at_most


class OutputExpiry(RequestTable):
    """Expiry of the output files."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 86_400)


Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=MAX_METADATA),
]


class BatchRequest(RequestTable):
    """Request to create a batch."""

    input_file_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            description="Id of an uploaded file of purpose `batch`, in JSON Lines.",
        ),
    ]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        Field(description="Endpoint that each line is sent to."),
    ]
    completion_window: Annotated[
        Literal["24h"], Field(description="Time limit of the batch; then its status is `expired`.")
    ]
    metadata: Annotated[
        Metadata | None, at_most(MAX_METADATA), Field(description="Returned with the batch.")
    ] = None
    output_expires_after: Annotated[
        OutputExpiry | None,
        Field(
            description="Expiry of the output files: `anchor` `created_at`, `seconds` from "
            "3600 to 2592000. Default: never."
        ),
    ] = None
