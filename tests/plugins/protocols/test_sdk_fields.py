"""SDK fields: every field of the vendors' clients is in a protocol's tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import ollama._types as theirs
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create
from pydantic import BaseModel
from typing_extensions import is_typeddict

from gatewayd_hooks.requests.tables import RequestTable, support_name
from gatewayd_proto_anthropic.tables import CountRequest, MessagesRequest
from gatewayd_proto_ollama import tables


def parts(hint: object) -> Iterator[Any]:
    """A type and those that it is put together of."""
    yield hint
    for one in get_args(hint):
        yield from parts(one)


def fields_of(kind: Any) -> dict[str, Any]:
    if is_typeddict(kind):
        return get_type_hints(kind)
    return {name: info.annotation for name, info in kind.model_fields.items()}


def words_of(fields: dict[str, Any], key: str) -> set[str]:
    literals = [one for one in parts(fields.get(key)) if get_origin(one) is Literal]
    return {str(word) for one in literals for word in get_args(one)}


def is_form(kind: object) -> bool:
    """Whether it is an object with fields, as SDKs describe them."""
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, RequestTable)


def fit(form: Any, table: type[RequestTable]) -> bool:
    """Whether the table is of this form; of one that it does not fit, nothing is taken."""
    for key in ("type", "role"):
        said, known = words_of(fields_of(form), key), words_of(fields_of(table), key)
        if said and known:
            return bool(said & known)
    return True


def walk(form: Any, table: type[RequestTable], place: str, seen: set[Any]) -> Iterator[str]:
    """Places of fields that the table does not have; ``seen`` gets what was compared."""
    if (form, table) in seen:
        return
    seen.add((form, table))
    for name, hint in fields_of(form).items():
        if name not in table.known:
            yield f"{place}.{name}"
        elif support_name(table, name) == "served":
            mine = table.model_fields[table.names[name]].annotation
            inner = [one for one in parts(mine) if is_table(one)]
            for one in filter(is_form, parts(hint)):
                for each in inner:
                    if fit(one, each):
                        yield from walk(one, each, f"{place}.{name}", seen)


@pytest.mark.parametrize(
    ("form", "table", "least"),
    [
        (message_create_params.MessageCreateParamsNonStreaming, MessagesRequest, 20),
        (message_create_params.MessageCreateParamsStreaming, MessagesRequest, 20),
        (message_count_tokens_params.MessageCountTokensParams, CountRequest, 20),
        (beta_create.MessageCreateParamsNonStreaming, MessagesRequest, 20),
        (beta_count.MessageCountTokensParams, CountRequest, 20),
        (theirs.ChatRequest, tables.OllamaChatRequest, 7),
        (theirs.GenerateRequest, tables.GenerateRequest, 2),
        (theirs.EmbedRequest, tables.EmbedRequest, 1),
        (theirs.EmbeddingsRequest, tables.EmbeddingsRequest, 1),
        (theirs.ShowRequest, tables.ShowRequest, 1),
        (theirs.PullRequest, tables.PullRequest, 1),
        (theirs.DeleteRequest, tables.DeleteRequest, 1),
    ],
)
def test_every_field_that_a_client_can_send_is_in_the_table(
    form: Any, table: type[RequestTable], least: int
) -> None:
    seen: set[Any] = set()
    assert list(walk(form, table, form.__name__, seen)) == []
    assert len(seen) >= least


def test_every_field_of_the_options_is_one_of_the_clients_or_served() -> None:
    """What the table has and no client sends would be a promise to nobody."""
    mine, known = (
        tables.OllamaChatRequest.model_fields["options"].annotation,
        theirs.Options.model_fields,
    )
    (options,) = [one for one in parts(mine) if is_table(one)]
    assert [name for name in options.known if name not in known] == ["min_p"]
