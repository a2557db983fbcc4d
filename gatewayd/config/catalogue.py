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
    """Two models, or a model and a route, have the same name; the message names their tables.

    Attributes:
        key: dotted key of the second one's table.
    """

    def __init__(self, name: str, first: str, second: str) -> None:
        tables = f"{first} and {second} both have the name {name!r}"
        if first == second:
            tables = f"{first} has the name {name!r} twice"
        super().__init__(f"{tables}: a name stands for one model or route, so rename one of them")
        self.key = second.strip("[]")


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


def check_names(
    models: Sequence[ModelConfig],
    config: Config,
    name: str | None = None,
) -> None:
    """Check that each name stands for one model or route.

    Args:
        models: those that are served together.
        config: the whole configuration, whose upstreams and routes have names as well.
        name: of the model of ``[model]``; None where only the configuration is known, which may
            leave it to the model's path.

    Raises:
        ModelNameTaken: two have the same name.
    """
    stated: list[tuple[str | None, str]] = []
    for model in models:
        own = model.name or name or model.config.model.served_name
        stated += [(each, model.table) for each in (own, *model.served_names)]
    for key, upstream in config.upstreams.items():
        stated += [(each, f"[upstreams.{key}.models]") for each in upstream.models]
    stated += [(each, f"[routes.{each}]") for each in config.routes]
    taken: dict[str, str] = {}
    for each, table in stated:
        if each is None:
            continue
        if each in taken:
            raise ModelNameTaken(each, taken[each], table)
        taken[each] = table


def stated_names(config: Config) -> list[str]:
    """Return the names that a configuration states of its models, served or not."""
    own = [name for name in (config.model.served_name,) if name is not None]
    more = [name for key, one in config.models.items() for name in (key, *one.served_names)]
    return [*own, *config.model.served_names, *more]


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
