"""The table of a request: its fields, their types and bounds, and how far each is served.

A table is a pydantic model. What a request must look like, what is said of it in
``/openapi.json``, in the documentation and in ``/v1/gateway/compat``, and what it is tested with
are made from it. A field is one of four things. Plain fields act. ``Noted`` ones are taken and
change nothing, by their nature. ``Ignored`` ones would matter elsewhere; the answer names them in
a header. ``Unsupported`` ones are refused unless they ask for nothing. ``checking.check`` checks a
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.fields import FieldInfo
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    PydanticKnownError,
    PydanticUseDefault,
    core_schema,
)

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """Taken; has no effect on the answer by its nature."""


@dataclass(frozen=True, slots=True, eq=False)  # lists in it have no hash, unions ask for one
class Ignored:
    """Taken and not acted on; ``x-gateway-ignored-params`` names it.

    Attributes:
        neutral: values that ask for nothing and are not named.
    """

    neutral: tuple[Any, ...] = (None,)


@dataclass(frozen=True, slots=True, eq=False)  # lists in it have no hash, unions ask for one
class Unsupported:
    """Refused.

    Attributes:
        reason: completes "<field> is not supported: ".
        neutral: values that ask for nothing and are accepted.
    """

    reason: str
    neutral: tuple[Any, ...] = (None,)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - any type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Look at the value before its type does."""
        inner = handler(source)
        return core_schema.no_info_before_validator_function(
            self._checked, inner, json_schema_input_schema=inner
        )

    def _checked(self, value: object) -> object:
        if value in self.neutral:
            return value
        raise PydanticCustomError("unsupported", "{reason}", {"reason": self.reason})


Mark = Noted | Ignored | Unsupported


@dataclass(frozen=True, slots=True)
class Acts:
    """Of the words in a list only these act; the others are taken, and named as ignored ones are.

    Attributes:
        words: that act.
    """

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """What asking for a field costs, beside the tokens themselves; a few words."""

    what: str


@dataclass(frozen=True, slots=True)
class OrNull:
    """Null is taken as the default: some clients send every field that they know."""

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - any type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Look at the value before its type does."""
        inner = handler(source)
        return core_schema.no_info_before_validator_function(
            _no_null, inner, json_schema_input_schema=core_schema.nullable_schema(inner)
        )


def _no_null(value: object) -> object:
    if value is None:
        raise PydanticUseDefault
    return value


@dataclass(frozen=True, slots=True, eq=False)  # lists in it have no hash, unions ask for one
class ByType:
    """One of several tables, told apart by the word in their field ``type``.

    ``Annotated[TextBlock | ImageBlock, ByType()]``; each table says its words in a ``Literal``.

    Attributes:
        key: the field, where it has another name.
        reasons: of words that are refused, why; continues "<place>.type is <word>, ".
    """

    key: str = "type"
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - a table, or a union of some
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """A union whose places in errors are those of the request."""
        words = {
            str(word): table
            for table in get_args(source) or (source,)
            for word in get_args(table.model_fields[self.key].annotation)
        }
        # What is no name is left out of places: a word would be taken for a field.
        choices = {f"<{word}>": handler.generate_schema(words[word]) for word in words}
        return core_schema.tagged_union_schema(
            choices,
            discriminator=self._tag,
            custom_error_type="unknown_type",
            custom_error_message="is of another type",
            custom_error_context={
                "key": self.key,
                "words": " or ".join(repr(word) for word in words),
                **{f"reason of {word}": reason for word, reason in self.reasons.items()},
            },
        )

    def _tag(self, value: object) -> str | None:
        word = value.get(self.key) if isinstance(value, dict) else None
        return f"<{word}>" if isinstance(word, str) else None


class RequestTable(BaseModel):
    """Base of the request models: JSON types are not converted, unknown fields are kept aside."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    ignored: ClassVar[dict[str, Ignored]]
    """As clients write them."""
    known: ClassVar[frozenset[str]]
    """The same."""
    names: ClassVar[dict[str, str]]
    """What fields are called here, of what clients write."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - pydantic's
        """Collect the marks."""
        written = {name: info.alias or name for name, info in cls.model_fields.items()}
        cls.names = {alias: name for name, alias in written.items()}
        cls.known = frozenset(cls.names)
        cls.ignored = {}
        acts = {}
        for name, info in cls.model_fields.items():
            for mark in info.metadata:
                if isinstance(mark, Ignored):
                    cls.ignored[written[name]] = mark
                elif isinstance(mark, Acts):
                    acts[written[name]] = mark
        inner = {
            written[name]: name
            for name, info in cls.model_fields.items()
            if _has_table(info.annotation)
        }
        SHAPES[cls] = Shape(cls.known, cls.ignored, inner, acts)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchema:
        """Say of each field how far it is served."""
        described = handler(schema)
        own = handler.resolve_ref_schema(described)
        for name, told in own.get("properties", {}).items():
            told["x-gateway-support"] = support_name(cls, name)
        return described


class Shape(NamedTuple):
    """What to look for in an object that a table was made of.

    Attributes:
        known: fields, as clients write them.
        ignored: those that are not acted on.
        inner: those that hold tables, and what they are called here.
        acts: of lists in which only some words act.
    """

    known: frozenset[str]
    ignored: dict[str, Ignored]
    inner: dict[str, str]
    acts: dict[str, Acts]


SHAPES: dict[type, Shape] = {}
"""Of every table; looked up for each message, where attributes of a class cost much more."""


def _has_table(annotation: object) -> bool:
    """Whether values of a type may be tables, or have some in them."""
    if isinstance(annotation, type) and issubclass(annotation, RequestTable):
        return True
    return any(_has_table(one) for one in get_args(annotation))


def _info(table: type[RequestTable], name: str) -> FieldInfo:
    """Of a field as clients write it."""
    return table.model_fields[table.names[name]]


def inner_table(table: type[RequestTable], name: str) -> type[RequestTable] | None:
    """The one table that a field is, if it is one and nothing else."""
    annotation = _info(table, name).annotation
    kinds = [one for one in get_args(annotation) or (annotation,) if one is not type(None)]
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], RequestTable):
        return kinds[0]
    return None


def cost_of(table: type[RequestTable], name: str) -> str:
    """What asking for a field costs; empty for nothing to speak of."""
    costs = [mark.what for mark in _info(table, name).metadata if isinstance(mark, Costs)]
    return costs[0] if costs else ""


def support_of(table: type[RequestTable], name: str) -> Mark | None:
    """The mark of a field, or None for one that acts."""
    for mark in _info(table, name).metadata:
        if isinstance(mark, Noted | Ignored | Unsupported):
            return mark
    return None


def support_name(table: type[RequestTable], name: str) -> str:
    """``served``, ``noted``, ``ignored`` or ``refused``."""
    match support_of(table, name):
        case Noted():
            return "noted"
        case Ignored():
            return "ignored"
        case Unsupported():
            return "refused"
    return "served"


def at_most(limit: int) -> BeforeValidator:
    """Refuse an object with more entries before they are looked at one by one."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            context = {
                "field_type": "Object",
                "max_length": limit,
                "actual_length": len(value),
            }
            raise PydanticKnownError("too_long", context)
        return value

    return BeforeValidator(check)
