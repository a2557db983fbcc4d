"""Models embedded in the package, by name. Imports no torch."""

from __future__ import annotations

from pathlib import Path

_MODELS = Path(__file__).parents[1] / "models"


def names() -> tuple[str, ...]:
    """Return the names of the embedded models, sorted."""
    return tuple(sorted(config.parent.name for config in _MODELS.glob("*/config.json")))


def folder(name: str = "nano") -> Path:
    """Return the folder of an embedded model, in the layout of a Hugging Face checkpoint.

    Raises:
        ValueError: no model of that name is embedded.
    """
    if name not in names():
        raise ValueError(f"no embedded model is called {name!r}; there are {', '.join(names())}")
    return _MODELS / name
