"""Sets of equally long arrays, each declared once with its type and empty value."""

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
        dtype: type of its values.
        empty: initial value of each entry.
    """
    return cast("NDArray[_Scalar]", _Column(dtype, empty))  # an instance has the array


class ColumnSet:
    """Base class of column sets: creates the declared columns, and grows them together.

    Args:
        size: length of each column.
    """

    _declared: ClassVar[dict[str, _Column]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, _Column)}
        cls._declared = {**cls._declared, **own}

    def __init__(self, size: int) -> None:
        self._size = size
        for name, (dtype, empty) in self._declared.items():
            setattr(self, name, np.full(size, empty, dtype))

    def columns(self) -> dict[str, Any]:
        """Return the arrays by name; they are replaced by the next growth."""
        return {name: getattr(self, name) for name in self._declared}

    def grow_columns(self, size: int) -> None:
        """Replace the arrays by longer ones with the same contents, unless they are as long."""
        more = size - self._size
        if more <= 0:
            return
        self._size = size
        for name, (dtype, empty) in self._declared.items():
            new = np.full(more, empty, dtype)
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def clear_columns(self, index: int | NDArray[np.integer]) -> None:
        """Reset one or more entries of every column."""
        for name, (_, empty) in self._declared.items():
            getattr(self, name)[index] = empty
