"""Models of the configuration, each with a configuration of its own."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from gatewayd.config.models import merged_for
from gatewayd.config.tables import Config


class ModelConfigError(ValueError):
    """The tables of one model are not valid together with the rest of the configuration.

    Attributes:
        name: of the model.
        error: of the validation; its locations are relative to the model's table.
    """

    def __init__(self, name: str, error: ValidationError) -> None:
        super().__init__(f"models.{name}: {error.error_count()} problems")
        self.name = name
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model that the daemon serves.

    Attributes:
        name: key of its table ``[models.NAME]``; None for the one of ``[model]``.
        config: the configuration as this model's engines see it.
        served_names: further names that requests may use.
        memory: of the loaded model in bytes; None to estimate it.
        is_pinned: whether it is never unloaded for another model.
        preloads: whether it is loaded at the start, and not by its first request.
    """

    name: str | None
    config: Config
    served_names: tuple[str, ...] = ()
    memory: int | None = None
    is_pinned: bool = True
    preloads: bool = True


def model_configs(config: Config) -> list[ModelConfig]:
    """Return the models of a configuration; the first serves requests that name none.

    ``[model]`` is the first if it has a path, or if there is no other: then it is the embedded
    model.

    Raises:
        ModelConfigError: the tables of one are not valid.
    """
    found = []
    if not config.models or config.model.path is not None:
        alone = config if not config.models else config.model_copy(update={"models": {}})
        found.append(
            ModelConfig(name=None, config=alone, served_names=tuple(config.model.served_names))
        )
    if config.models:
        base = config.model_dump(exclude_unset=True)
        found += [_of_entry(config, name, base) for name in config.models]
    return found


def _of_entry(config: Config, name: str, base: dict[str, object]) -> ModelConfig:
    entry = config.models[name]
    try:
        own = Config(**merged_for(entry, name, base))
    except ValidationError as error:
        raise ModelConfigError(name, error) from error
    return ModelConfig(
        name=name,
        config=own,
        served_names=tuple(entry.served_names),
        memory=None if entry.memory is None else int(entry.memory),
        is_pinned=entry.pinned,
        preloads=entry.preload,
    )
