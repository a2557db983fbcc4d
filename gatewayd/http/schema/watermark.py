"""Request schema of ``POST /v1/watermark/detect``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gatewayd_hooks.requests.fields import Model, TokenIds
from gatewayd_hooks.requests.tables import RequestTable

MAX_MARK_TOKENS = 2**16
"""Maximum tokens of a detection, which take 0.1 s of a thread."""


class DetectRequest(RequestTable):
    """Request to detect a tenant's watermark in a text or its token ids."""

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
