"""The backend: a model on the meta device, its trace, and its weights. No transformers here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import (
        LoadedModel,
        ModelBackendResources,
        ModelFacts,
        ModelWeights,
    )
    from gatewayd_model_transformers.blueprint import Blueprint

_LEAST_VERSION = (5, 23)
"""As the extra of ``pyproject.toml`` has it."""


class TransformersBackend:
    """Serves causal language models whose attention transformers lets others replace."""

    def open(self, resources: ModelBackendResources) -> None:
        """Remember where the model is.

        Raises:
            ValueError: transformers is not installed, or too old.
        """
        try:
            installed = version("transformers")
        except PackageNotFoundError:
            installed = ""
        numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdecimal())
        if numbers < _LEAST_VERSION:
            least = ".".join(map(str, _LEAST_VERSION))
            has = f"{installed} is installed" if installed else "it is not installed"
            raise ValueError(
                f"the model backend transformers needs the library transformers {least}, and {has}:"
                " pip install 'gatewayd[transformers]'"
            )
        self._resources = resources
        self._blueprint: Blueprint | None = None

    def close(self) -> None:
        """Release the model without weights."""
        self._blueprint = None

    def facts(self) -> ModelFacts:
        """See ``ModelBackendStrategy``."""
        return self._traced().facts

    def load(self, weights: ModelWeights) -> LoadedModel:
        """See ``ModelBackendStrategy``."""
        from gatewayd_model_transformers.loading import load

        return load(self._traced(), weights)

    def _traced(self) -> Blueprint:
        # Imported where it is used: transformers is optional, and takes seconds.
        from gatewayd_model_transformers.blueprint import trace_model

        if self._blueprint is None:
            given = self._resources
            self._blueprint = trace_model(given.folder, given.max_model_len)
        return self._blueprint
