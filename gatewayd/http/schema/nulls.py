"""Null where a field has a default: the same as nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticUseDefault, core_schema


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
