"""Option groups shared by commands, declared once as parameters of a function or dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def with_option_groups(
    **makers: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command so that some of its parameters are replaced by groups of options.

    Args:
        makers: a function or dataclass by parameter name; its own parameters become options of the
            command, which gets the result of the call.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        names: dict[str, list[str]] = {}
        # Annotations are strings in modules with ``from __future__ import annotations``.
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            maker = makers.get(parameter.name)
            if maker is None:
                parameters.append(parameter)
                continue
            options = inspect.signature(maker, eval_str=True).parameters.values()
            names[parameter.name] = [option.name for option in options]
            parameters.extend(options)

        @wraps(command)
        def run(**options: object) -> None:
            made = {
                name: makers[name](**{option: options.pop(option) for option in theirs})
                for name, theirs in names.items()
            }
            command(**options, **made)

        # Keyword-only ones may have and lack defaults in any order.
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        # typer reads both the signature and the annotations.
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate
