"""The request of ``POST /v1/watermark/detect``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gatewayd_hooks.requests.fields import Model, TokenIds
from gatewayd_hooks.requests.tables import RequestTable

MAX_MARK_TOKENS = 2**16
"""A tenth of a second of a thread."""


class DetectRequest(RequestTable):
    """A text, or its token ids, that may carry the mark of the caller's tenant."""

    tenant: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            description="Tenant whose watermark to detect. Only the operator may name a "
            "tenant other than its own.",
        ),
    ] = None

    model: Annotated[Model | None, Field(description="Name of a served model.")] = None
    text: Annotated[str | None, Field(description="Text to check; either this or `tokens`.")] = None
    tokens: Annotated[
        TokenIds | None, Field(description="Token ids to check; more reliable than text, if known.")
    ] = None
