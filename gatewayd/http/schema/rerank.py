"""Request schemas of ``POST /v1/rerank`` and ``POST /v1/score``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from gatewayd.http.schema.embeddings import InputText, PoolingTable, Texts
from gatewayd_hooks.requests.fields import MAX_INPUTS, MAX_INT
from gatewayd_hooks.requests.tables import RequestTable


class DocumentText(RequestTable):
    """Document as an object."""

    text: InputText


def _kind(value: object) -> str:
    return "an object" if isinstance(value, dict | DocumentText) else "a text"


Document = Annotated[
    Annotated[InputText, Tag("a text")] | Annotated[DocumentText, Tag("an object")],
    Discriminator(_kind),
]
Documents = Annotated[
    list[Document], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS - 1)
]


class RerankRequest(PoolingTable):
    """Request to rank documents by similarity to a query."""

    query: Annotated[InputText, Field(description="Query that the documents are ranked by.")]
    documents: Annotated[Documents, Field(description='Strings, or objects `{"text": ...}`.')]
    top_n: Annotated[
        Annotated[int, Field(ge=0, le=MAX_INT)] | None,
        Field(description="Number of best documents to return. Default, and 0: all."),
    ] = None
    return_documents: Annotated[
        bool | None, Field(description="Return the texts of documents too. Default: true.")
    ] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INT)] | None,
        Field(description="Truncate longer documents to this number of tokens."),
    ] = None


class ScoreRequest(PoolingTable):
    """Request to score the similarity of texts."""

    text_1: Annotated[
        InputText | Texts | None,
        Field(description="One string to compare with all of `text_2`, or as many as `text_2`."),
    ] = None
    text_2: Annotated[InputText | Texts | None, Field(description="A string, or strings.")] = None
    queries: Annotated[InputText | Texts | None, Field(description="Alias of `text_1`.")] = None
    documents: Annotated[
        InputText | Documents | None, Field(description="Alias of `text_2`; objects are allowed.")
    ] = None
