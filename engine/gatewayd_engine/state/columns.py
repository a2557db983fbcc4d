"""Columns: arrays of equally many places, each named once with its type and empty value."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)


class _Column(NamedTuple):
    dtype: type[np.generic]
    empty: float


def column(dtype: type[_Scalar], empty: float = 0) -> NDArray[_Scalar]:
    """Declare a column in the body of a subclass of ``ColumnSet``.

    Args:
        dtype: of its values.
        empty: what a place holds that nobody has written to.
    """
    return cast("NDArray[_Scalar]", _Column(dtype, empty))  # an instance has the array


class ColumnSet:
    """Makes the columns that a subclass declares, and grows them together.

    Args:
        places: of each column.
    """

    _declared: ClassVar[dict[str, _Column]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, _Column)}
        cls._declared = {**cls._declared, **own}

    def __init__(self, places: int) -> None:
        self._places = places
        for name, (dtype, empty) in self._declared.items():
            setattr(self, name, np.full(places, empty, dtype))

    def columns(self) -> dict[str, Any]:
        """The arrays by name; others after the next growth."""
        return {name: getattr(self, name) for name in self._declared}

    def grow_columns(self, places: int) -> None:
        """Replace the arrays by longer ones, unless they are as long; what they hold stays."""
        more = places - self._places
        if more <= 0:
            return
        self._places = places
        for name, (dtype, empty) in self._declared.items():
            new = np.full(more, empty, dtype)
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def clear_columns(self, places: int | NDArray[np.integer]) -> None:
        """Empty a place, or some, of every column."""
        for name, (_, empty) in self._declared.items():
            getattr(self, name)[places] = empty
