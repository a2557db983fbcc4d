"""Options that several commands take: written once, as the parameters of what is made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def taking(**makers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the options of others in the place of some of its parameters.

    Args:
        makers: by the name of a parameter, a function or a dataclass; its own parameters become
            options there, and the command gets what it makes of them.
    """

    def taken(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        names: dict[str, list[str]] = {}
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

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return taken
