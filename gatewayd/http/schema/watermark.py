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
            description="Whose mark, for the operator; others may name their own tenant only.",
        ),
    ] = None

    model: Annotated[Model | None, Field(description="A served model's name.")] = None
    text: Annotated[str | None, Field(description="Either this or `tokens`.")] = None
    tokens: Annotated[
        TokenIds | None, Field(description="Ids of the vocabulary; surer than text, if known.")
    ] = None
