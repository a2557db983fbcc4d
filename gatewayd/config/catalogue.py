"""Models of the configuration, each with a configuration of its own."""

from __future__ import annotations

from collections.abc import Sequence
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


class ModelNameTaken(ValueError):
    """Two models have the same name; the message names their tables.

    Attributes:
        key: dotted key of the second one's table.
    """

    def __init__(self, name: str, first: ModelConfig, second: ModelConfig) -> None:
        tables = f"{first.table} and {second.table} both have the name {name!r}"
        if first is second:
            tables = f"{first.table} has the name {name!r} twice"
        super().__init__(f"{tables}: a name stands for one model, so remove one of them")
        self.key = second.table.strip("[]")


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

    @property
    def table(self) -> str:
        """Its table in the configuration file."""
        return "[model]" if self.name is None else f"[models.{self.name}]"


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


def check_names(models: Sequence[ModelConfig], name: str | None = None) -> None:
    """Check that each name stands for one model.

    Args:
        models: those that are served together.
        name: of the model of ``[model]``; None where only the configuration is known, which may
            leave it to the model's path.

    Raises:
        ModelNameTaken: two have the same name.
    """
    taken: dict[str, ModelConfig] = {}
    for model in models:
        own = model.name or name or model.config.model.served_name
        for each in (own, *model.served_names):
            if each is None:
                continue
            if each in taken:
                raise ModelNameTaken(each, taken[each], model)
            taken[each] = model


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
