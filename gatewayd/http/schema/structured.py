"""Request fields that constrain the output, as named by several APIs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gatewayd_hooks.requests.fields import Schema
from gatewayd_hooks.requests.tables import Costs, Ignored, OrNull, RequestTable, Unsupported

MAX_CHOICE_STRINGS = 4096
MAX_GRAMMAR_CHARS = 1 << 20

Text = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(fail_fast=True, min_length=1, max_length=MAX_CHOICE_STRINGS),
]
_GRAMMAR = Costs("a grammar to compile, and a mask of the vocabulary for each token")


class NamedSchema(RequestTable):
    """Named JSON Schema."""

    name: Annotated[str | None, Field(max_length=256)] = None
    description: Annotated[str | None, Field(max_length=65_536)] = None
    schema_: Annotated[Schema | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class TagStructure(RequestTable):
    """Structure of a structural tag, started by a trigger."""

    begin: Text
    schema_: Annotated[Schema | bool, OrNull(), Field(alias="schema")] = True
    end: str


Structures = Annotated[list[TagStructure], Field(fail_fast=True, min_length=1, max_length=256)]
Triggers = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=256)]


class ResponseFormat(RequestTable):
    """Format of the output."""

    type: Literal["text", "json_object", "json_schema", "structural_tag", "json", "regex"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[Schema | bool | None, Field(alias="schema")] = None
    structures: Structures | None = None
    triggers: Triggers | None = None
    value: Schema | Text | None = None
    format: Any = None


class StructuredOutputs(RequestTable):
    """Constraint on the output; exactly one field must be set."""

    json_: Annotated[Schema | Text | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    structural_tag: Schema | Text | None = None
    disable_any_whitespace: Annotated[
        bool,
        OrNull(),
        Field(
            description="JSON has one blank at most between two of its parts, whatever the guide's "
            "`any_whitespace` is."
        ),
    ] = False
    disable_additional_properties: Annotated[bool, OrNull()] = False
    whitespace_pattern: str | None = None


class StructuredTable(RequestTable):
    """Fields that constrain the output, of which at most one may be given."""

    response_format: Annotated[
        ResponseFormat | None,
        _GRAMMAR,
        Field(
            description="`text`, `json_object`, `json_schema` (enforced, `strict` or not), "
            "`structural_tag`; TGI's `json` and `regex` with a `value`."
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        _GRAMMAR,
        Field(
            description="Exactly one of `json`, `json_object`, `regex`, `choice`, `grammar` (Lark "
            "or EBNF), `structural_tag`."
        ),
    ] = None
    guided_json: Annotated[
        Schema | Text | None, _GRAMMAR, Field(description="As `structured_outputs.json`.")
    ] = None
    guided_regex: Annotated[
        Text | None, _GRAMMAR, Field(description="As `structured_outputs.regex`.")
    ] = None
    guided_choice: Annotated[
        Choices | None, _GRAMMAR, Field(description="As `structured_outputs.choice`.")
    ] = None
    guided_grammar: Annotated[
        Text | None, _GRAMMAR, Field(description="As `structured_outputs.grammar`.")
    ] = None
    guided_decoding_backend: Annotated[Any, Ignored()] = None
    guided_whitespace_pattern: Annotated[Any, Unsupported("define white space in the grammar")] = (
        None
    )
    json_schema: Annotated[
        Schema | Text | None,
        _GRAMMAR,
        Field(description="As `structured_outputs.json`: SGLang's and llama.cpp's."),
    ] = None
    regex: Annotated[
        Text | None, _GRAMMAR, Field(description="As `structured_outputs.regex`: SGLang's.")
    ] = None
    ebnf: Annotated[
        Text | None, _GRAMMAR, Field(description="As `structured_outputs.grammar`: SGLang's.")
    ] = None
    grammar: Annotated[
        Text | None, _GRAMMAR, Field(description="As `structured_outputs.grammar`: llama.cpp's.")
    ] = None
