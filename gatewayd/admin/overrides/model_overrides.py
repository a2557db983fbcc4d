"""Models that operators have added or removed, on top of the configuration file's."""

from __future__ import annotations

import logging
from typing import Any

from gatewayd.admin.overrides.records import OverrideJournal, OverrideRecord
from gatewayd.config.catalogue import ModelConfigError, model_configs
from gatewayd.config.models import EMBEDDED, ModelEntry
from gatewayd.config.tables import Config, ModelTable

_log = logging.getLogger(__name__)

_DEFAULT = "nano"
"""The embedded model that is served without a configuration."""

SECTION = "model:"
"""Begins the sections of models in the store, such as ``model:small``."""

MODEL = ""
"""Stands for ``[model]``, of which a version has been promoted."""


class ModelOverrides:
    """Tables of models that operators have changed; null for a removed one.

    Args:
        journal: of all changes.
    """

    def __init__(self, journal: OverrideJournal) -> None:
        self._journal = journal
        self._changes = journal.latest(SECTION)

    def apply(self, file: Config) -> Config:
        """Return the configuration with the changed models, except where the file has changed."""
        models, model = dict(file.models), file.model
        for name, change in self._changes.items():
            if change.base != _base(file, name):
                _log.warning(
                    "runtime change of %s dropped: the configuration file has changed since",
                    f"the model {name}" if name != MODEL else "[model]",
                )
            elif name == MODEL:
                model = _promoted(file.model, change.value)
            elif change.value is None:
                models.pop(name, None)
            else:
                try:
                    models[name] = ModelEntry.model_validate(change.value)
                # Another version may have written keys that this one does not know.
                except ValueError as error:
                    _log.warning("the model %s is not added: %s", name, error)
        if models == file.models and model is file.model:
            return file
        update: dict[str, Any] = {"models": models, "model": model}
        if not file.models and model.path is None:
            # Named, because without a path `[model]` is served only where there is no other.
            update["model"] = model.model_copy(update={"path": f"{EMBEDDED}{_DEFAULT}"})
        changed = file.model_copy(update=update)
        try:
            model_configs(changed)
        except ModelConfigError as error:
            _log.error("runtime changes of models not applied: %s", error)
            return file
        return changed

    def persist(
        self,
        name: str,
        entry: ModelEntry | ModelTable | None,
        file: Config,
        who: str,
        *together: OverrideRecord,
    ) -> None:
        """Persist the addition of a model, or its removal.

        Args:
            name: of the model; ``MODEL`` for ``[model]``.
            entry: its table; None if it is removed.
            file: the configuration's file.
            who: the operator.
            together: other records of the same change.
        """
        change = self._journal.record(who, SECTION + name, _stated(entry), _base(file, name))
        self._changes[name] = change
        self._journal.add(change, *together)


def _base(file: Config, name: str) -> Any:  # noqa: ANN401 - JSON
    return _stated(file.model if name == MODEL else file.models.get(name))


def _promoted(model: ModelTable, value: Any) -> ModelTable:  # noqa: ANN401 - JSON
    """``[model]`` with the version that an operator has promoted."""
    try:
        return ModelTable.model_validate(value)
    # Another version may have written keys that this one does not know.
    except ValueError as error:
        _log.warning("the promoted version of [model] is not served: %s", error)
        return model


def _stated(entry: ModelEntry | ModelTable | None) -> Any:  # noqa: ANN401 - JSON
    """What a table sets; None if there is none."""
    return None if entry is None else entry.model_dump(mode="json", exclude_unset=True)
