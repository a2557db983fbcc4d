"""The model's own chat template, in a sandbox.

Templates come only from the model's folder, never from a request, and may neither reach Python's
internals nor change what they are given, nor take more time and memory than ``template_bounds``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from gatewayd.errors import InvalidRequest
from gatewayd.text.template_bounds import BoundedEnvironment, begun

RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
)
"""What no request may give to a template by itself; beside these, all that ends in ``_token``."""
_DICT_ATTRIBUTES = frozenset(dir(dict))


class _Environment(BoundedEnvironment):
    """The sandbox, without an exception for each ``message.role``."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - jinja2's
        """Look into plain dictionaries first, unless they have a method of that name."""
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Give the block's body, in a scope of its own as in training."""
        scope = nodes.Scope(lineno=next(parser.stream).lineno)
        scope.body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return scope


class ChatTemplate:
    """Renders messages to the prompt the model was trained on."""

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, *, tool_source: str = ""
    ) -> None:
        """Compile a template.

        Args:
            source: jinja2.
            tokens: names such as ``bos_token`` that the template may use.
            tool_source: of another one that is taken where there are tools; empty for the same.

        Raises:
            ValueError: it does not compile.
        """
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.bound_filters()
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self.source = source + tool_source
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(tool_source or source)
            self._variables = frozenset(
                meta.find_undeclared_variables(environment.parse(source))
                | meta.find_undeclared_variables(environment.parse(tool_source))
            )
        except TemplateError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error
        for template in (self._template, self._tool_template):
            # jinja2 chains them, and would walk the chain for each rendering.
            template.globals = {**template.globals, **(tokens or {})}

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read ``chat_template.jinja`` or the entry of ``tokenizer_config.json``.

        Returns:
            None where the model has none.

        Raises:
            ValueError: it does not compile.
        """
        config: dict[str, Any] = {}
        config_file = folder / "tokenizer_config.json"
        if config_file.exists():
            config = json.loads(config_file.read_text(encoding="utf-8"))
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
        tool_source = ""
        if isinstance(source, list):  # several, by name
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
            tool_source = named.get("tool_use", "")
        if source is None:
            return None
        return cls(source, _special_tokens(config), tool_source=tool_source)

    def takes(self, name: str) -> bool:
        """Whether the template looks at a variable."""
        return name in self._variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Render messages.

        Args:
            messages: each with its ``role``.
            tools: that the model may call; None for none.
            add_generation_prompt: end with the beginning of an answer.
            arguments: the request's own, none of them ``RESERVED``.

        Raises:
            InvalidRequest: the template refuses them.
        """
        template = self._template if tools is None else self._tool_template
        try:
            return template.render(
                **arguments,
                **begun(),
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
            )
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"the model's chat template does not accept these messages: {error}",
                param="messages",
            ) from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        if name.endswith("_token"):
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[name] = content
    return tokens


def _to_json(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest(f"the model's chat template says: {message}", param="messages")


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
