"""Chat template of the model, rendered in a sandbox.

Templates come only from the model's folder, never from a request. They can neither access Python's
internals nor modify their variables, and ``template_bounds`` limits their time and memory.
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
from gatewayd.text.template_bounds import BoundedEnvironment, new_meter

RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
)
"""Variables that requests must not set, in addition to all that end in ``_token``."""
_DICT_ATTRIBUTES = frozenset(dir(dict))


class _Environment(BoundedEnvironment):
    """Sandbox with a fast path for ``message.role``, which avoids an exception per access."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - jinja2's
        """Look up keys of plain dicts first, unless dicts have a method of that name."""
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _Generation(Extension):
    """Support for ``{% generation %}``, which marks model output in training; no effect here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body, in its own scope as in training."""
        scope = nodes.Scope(lineno=next(parser.stream).lineno)
        scope.body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return scope


class ChatTemplate:
    """Chat template that renders messages to a prompt in the model's training format."""

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, *, tool_source: str = ""
    ) -> None:
        """Compile a template.

        Args:
            source: of the template, for jinja2.
            tokens: variables such as ``bos_token`` for the template.
            tool_source: of the template for requests with tools; empty to use the same.

        Raises:
            ValueError: it does not compile.
        """
        # The options, `tojson` and functions of transformers, for which templates are written.
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        # jinja2's own filter escapes characters for HTML.
        environment.filters["tojson"] = _to_json
        # Once more, for the filter that was just set.
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
            # Flattened, because jinja2 would walk its chain of mappings at each rendering.
            template.globals = {**template.globals, **(tokens or {})}

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read ``chat_template.jinja`` or the entry of ``tokenizer_config.json``.

        Returns:
            The template; None if the model has none.

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

    def uses_variable(self, name: str) -> bool:
        """Whether the template refers to a variable."""
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
            add_generation_prompt: append the prefix of an assistant message.
            arguments: additional variables from the request, none of them ``RESERVED``.

        Raises:
            InvalidRequest: the template rejects the messages.
        """
        template = self._template if tools is None else self._tool_template
        variables = {
            **template.globals,
            **arguments,
            **new_meter(),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        # What `template.render` does, without its copies of the variables, a quarter of the time.
        make_context = template.environment.context_class
        context = make_context(template.environment, variables, template.name, template.blocks)
        try:
            return "".join(template.root_render_func(context))
        except InvalidRequest:
            raise
        except Exception as error:
            # Templates raise anything; exceeded limits and deep recursion are among it.
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
