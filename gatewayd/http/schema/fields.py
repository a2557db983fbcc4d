"""What a request field is: its type, its bounds, and how far it is served.

A field of a request model is one of four things. Plain fields act. ``Noted`` ones are taken and
change nothing, by their nature. ``Ignored`` ones would matter elsewhere; the answer names them in
a header. ``Unsupported`` ones are refused unless they ask for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError


@dataclass(frozen=True, slots=True)
class Noted:
    """Taken; has no effect on the answer by its nature."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Taken and not acted on; ``x-gateway-ignored-params`` names it.

    Attributes:
        neutral: values that ask for nothing and are not named.
    """

    neutral: tuple[Any, ...] = (None,)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Refused.

    Attributes:
        reason: completes "<field> is not supported: ".
        neutral: values that ask for nothing and are accepted.
    """

    reason: str
    neutral: tuple[Any, ...] = (None,)


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


class RequestTable(BaseModel):
    """Base of the request models: JSON types are not converted, unknown fields are kept aside."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    unsupported: ClassVar[dict[str, Unsupported]]
    ignored: ClassVar[dict[str, Ignored]]
    known: ClassVar[frozenset[str]]
    """As clients write them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - pydantic's
        """Collect the marks."""
        cls.unsupported, cls.ignored = {}, {}
        acts = {}
        for name, info in cls.model_fields.items():
            for mark in info.metadata:
                if isinstance(mark, Unsupported):
                    cls.unsupported[name] = mark
                elif isinstance(mark, Ignored):
                    cls.ignored[name] = mark
                elif isinstance(mark, Acts):
                    acts[name] = mark
        written = {name: info.alias or name for name, info in cls.model_fields.items()}
        cls.known = frozenset(written.values())
        inner = {
            written[name]: name
            for name, info in cls.model_fields.items()
            if _has_table(info.annotation)
        }
        SHAPES[cls] = Shape(cls.known, inner, acts)


class Shape(NamedTuple):
    """What to look for in an object that a table was made of.

    Attributes:
        known: fields, as clients write them.
        inner: those that hold tables, and what they are called here.
        acts: of lists in which only some words act.
    """

    known: frozenset[str]
    inner: dict[str, str]
    acts: dict[str, Acts]


SHAPES: dict[type, Shape] = {}
"""Of every table; looked up for each message, where attributes of a class cost much more."""


def _has_table(annotation: object) -> bool:
    """Whether values of a type may be tables, or have some in them."""
    if isinstance(annotation, type) and issubclass(annotation, RequestTable):
        return True
    return any(_has_table(one) for one in get_args(annotation))


def cost_of(table: type[RequestTable], name: str) -> str:
    """What asking for a field costs; empty for nothing to speak of."""
    costs = [mark.what for mark in table.model_fields[name].metadata if isinstance(mark, Costs)]
    return costs[0] if costs else ""


def support_of(table: type[RequestTable], name: str) -> Mark | None:
    """The mark of a field, or None for one that acts."""
    for mark in table.model_fields[name].metadata:
        if isinstance(mark, Noted | Ignored | Unsupported):
            return mark
    return None


MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BIASES = 1024
MAX_PROMPTS = 128
MAX_IDS = 2**20
MAX_SEED = 2**63 - 1
MAX_EXTRA_ARGS = 16
MAX_METADATA = 16
MAX_INT = 2**63 - 1


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


Model = Annotated[str, Field(min_length=1, max_length=256, description="A served model's name.")]
Count = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
MaxTokens = Annotated[int, Field(ge=0, le=MAX_INT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# A list of millions that are all wrong would otherwise be told of each of them.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_IDS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
ExtraName = Annotated[str, Field(min_length=1, max_length=64)]
ExtraValue = bool | int | Finite | Annotated[str, Field(max_length=256)]
Priority = Literal["realtime", "standard", "batch"]
PriorityNumber = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")]
ServiceTier = Literal["auto", "default", "standard", "scale", "flex", "priority", "fast"]
