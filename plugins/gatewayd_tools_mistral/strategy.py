"""Parses ``[TOOL_CALLS][{...}, ...]`` and the newer ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.parsing import OutputParser, Tool
from gatewayd_tools_mistral.answer_parser import ARGS, BEGIN, ID, MistralParser

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources
    from gatewayd_tools_mistral.config import MistralConfig

_LETTERS = string.ascii_letters + string.digits
_ID = re.compile(r"[A-Za-z0-9]{9}")


class Mistral:
    """Format of Mistral's models since 7B v0.3."""

    marks = (BEGIN, ARGS, ID)

    def __init__(self, config: MistralConfig) -> None:
        self._config = config
        self._has_args = False

    def open(self, resources: GatewayResources) -> None:
        """Determine which of the two formats the model uses."""
        self._has_args = ARGS in resources.chat_template

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def suits(self, chat_template: str) -> bool:
        """Whether a template shows the model its own earlier calls in this format."""
        return BEGIN in chat_template

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser that accepts any name: delimiters identify calls."""
        return MistralParser()

    def call_id(self, unique: str) -> str:
        """Return nine letters or digits: templates reject other ids."""
        if _ID.fullmatch(unique):
            return unique
        # 64 bits of a hash, of which the nine lowest digits to the base 62 are used.
        number = int.from_bytes(hashlib.sha256(unique.encode()).digest()[:8], "big")
        made = ""
        for _ in range(9):
            number, at = divmod(number, len(_LETTERS))
            made += _LETTERS[at]
        return made

    def guide(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> GuideSpec:
        """Constrain calls to the format of the model's template."""
        structures = [
            {
                "begin": f"{BEGIN}{tool.name}{ARGS}"
                if self._has_args
                else f'{BEGIN} [{{"name": {json.dumps(tool.name)}, "arguments": ',
                "schema": tool.parameters or {"type": "object"},
                "end": "" if self._has_args else "}]",
            }
            for tool in tools
        ]
        spec = {
            "triggers": [BEGIN],
            "structures": structures,
            "at_least_one": required,
            "stop_after_first": not parallel,
        }
        if required:
            spec["separator"] = ""
        return GuideSpec("structural_tag", json.dumps(spec))
