"""Request tables: the fields of a request, their types and bounds, and how each is supported.

A table is a pydantic model. Validation, ``/openapi.json``, the documentation,
``/v1/gateway/compat`` and tests are derived from it. A field is one of four things. Plain fields
take effect. ``Noted`` ones are accepted and have no effect, by their nature. ``Ignored`` ones would
matter elsewhere; the answer lists them in a header. ``Unsupported`` ones are refused unless they
have a neutral value. ``checking.check`` checks a request.
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
    """Mark of an accepted field that has no effect on the answer by its nature."""


@dataclass(frozen=True, slots=True, eq=False)  # lists in it have no hash, unions ask for one
class Ignored:
    """Mark of an accepted field without effect; ``x-gateway-ignored-params`` lists it.

    Attributes:
        neutral: values that request nothing and are not listed.
    """

    neutral: tuple[Any, ...] = (None,)


@dataclass(frozen=True, slots=True, eq=False)  # lists in it have no hash, unions ask for one
class Unsupported:
    """Mark of a refused field.

    Attributes:
        reason: completes "<field> is not supported: ".
        neutral: values that request nothing and are accepted.
    """

    reason: str
    neutral: tuple[Any, ...] = (None,)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - any type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Check the value before its type is validated."""
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
    """Literals in a list that take effect; others are accepted, and listed as ignored fields are.

    Attributes:
        words: that take effect.
    """

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """Short description of what a field costs in addition to the tokens themselves."""

    what: str


@dataclass(frozen=True, slots=True)
class OrNull:
    """Null is accepted as the default: some clients send every field that they know."""

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - any type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Check the value before its type is validated."""
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
    """One of several tables, discriminated by the value of their field ``type``.

    ``Annotated[TextBlock | ImageBlock, ByType()]``; each table lists its values in a ``Literal``.

    Attributes:
        key: name of the field, if it is another.
        reasons: why some values are refused; continues "<place>.type is <word>, ".
    """

    key: str = "type"
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - a table, or a union of some
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Return a tagged union whose error locations are those of the request."""
        words = {
            str(word): table
            for table in get_args(source) or (source,)
            for word in get_args(table.model_fields[self.key].annotation)
        }
        # Tags that are no identifiers are omitted from paths; a plain word would look like a field.
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
    """Base of request models: JSON types are not converted, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    ignored: ClassVar[dict[str, Ignored]]
    """By the names that clients use."""
    known: ClassVar[frozenset[str]]
    """Names of fields that clients use."""
    names: ClassVar[dict[str, str]]
    """Attribute names by the names that clients use."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - pydantic's
        """Collect the marks of fields."""
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
        """Add the support level of each field."""
        described = handler(schema)
        own = handler.resolve_ref_schema(described)
        for name, described_field in own.get("properties", {}).items():
            described_field["x-gateway-support"] = support_name(cls, name)
        return described


class Shape(NamedTuple):
    """Index for finding unserved fields in an object that a table was made of.

    Attributes:
        known: field names that clients use.
        ignored: fields without effect.
        inner: fields that contain tables, and their attribute names.
        acts: lists in which only some literals take effect.
    """

    known: frozenset[str]
    ignored: dict[str, Ignored]
    inner: dict[str, str]
    acts: dict[str, Acts]


SHAPES: dict[type, Shape] = {}
"""Shape of every table; looked up for each message, where class attributes are much slower."""


def _has_table(annotation: object) -> bool:
    """Whether values of a type may be tables, or contain some."""
    if isinstance(annotation, type) and issubclass(annotation, RequestTable):
        return True
    return any(_has_table(one) for one in get_args(annotation))


def _info(table: type[RequestTable], name: str) -> FieldInfo:
    """Return the pydantic info of a field, by the name that clients use."""
    return table.model_fields[table.names[name]]


def inner_table(table: type[RequestTable], name: str) -> type[RequestTable] | None:
    """Return the table that a field's type is, if it is exactly one table; None otherwise."""
    annotation = _info(table, name).annotation
    kinds = [one for one in get_args(annotation) or (annotation,) if one is not type(None)]
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], RequestTable):
        return kinds[0]
    return None


def cost_of(table: type[RequestTable], name: str) -> str:
    """Return what a field costs; empty if negligible."""
    costs = [mark.what for mark in _info(table, name).metadata if isinstance(mark, Costs)]
    return costs[0] if costs else ""


def support_of(table: type[RequestTable], name: str) -> Mark | None:
    """Return the mark of a field, or None for one that takes effect."""
    for mark in _info(table, name).metadata:
        if isinstance(mark, Noted | Ignored | Unsupported):
            return mark
    return None


def support_name(table: type[RequestTable], name: str) -> str:
    """Return ``served``, ``noted``, ``ignored`` or ``refused``."""
    match support_of(table, name):
        case Noted():
            return "noted"
        case Ignored():
            return "ignored"
        case Unsupported():
            return "refused"
    return "served"


def at_most(limit: int) -> BeforeValidator:
    """Return a validator that refuses an object with too many entries before each is validated."""

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
