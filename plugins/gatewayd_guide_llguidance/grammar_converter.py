"""Converts every form of a ``GuideSpec`` to a grammar of llguidance."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, regex_to_lark

from gatewayd_guide_llguidance import ebnf, ebnf_lark
from gatewayd_guide_llguidance.expressions import portable
from gatewayd_guide_llguidance.forcing import NOTHING, header, strings_in
from gatewayd_guide_llguidance.tags import Writer
from gatewayd_hooks.guiding import GrammarRefused
from gatewayd_hooks.helpers.formats import read_format, tags_of
from gatewayd_hooks.helpers.grammars import (
    check_size,
    read_choices,
    read_schema,
    read_structural_tag,
)
from gatewayd_hooks.helpers.schemas import STANDARD, check_schema, without_remarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatewayd_guide_llguidance.config import LlguidanceConfig
    from gatewayd_hooks.guiding import GuideSpec
    from gatewayd_hooks.helpers.formats import Format

FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uri",
        "uuid",
    }
)
_UNKNOWN = {"extends", "disallow", "divisibleBy"}  # of old drafts; llguidance ignores them
# Possessive, and an unterminated string extends to the end of its line: client input is scanned
# once, without backtracking.
_LARK_RULE = re.compile(r"(?m)^[ \t]*+[?!]?[A-Za-z_]\w*+[^:\n\"/]*+:")
_LARK_PART = re.compile(r'"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\\n])++/?|//[^\n]*+|<[^<>\s"\[\]]++>')
_DIRECTIVE = re.compile(r"(?m)^[ \t]*+%llguidance[ \t]*+\{[^{}]*+\}")
_RULES = 2000


class GrammarConverter:
    """Converts specs within limits.

    Args:
        config: the limits.
        special: contents of special tokens, and their ids.
    """

    def __init__(self, config: LlguidanceConfig, special: Mapping[str, int]) -> None:
        self._config = config
        self._special = special

    def grammar_of(self, spec: GuideSpec) -> str:
        """Convert a spec.

        Raises:
            GrammarRefused: it is invalid or too large.
        """
        check_size(spec.form, spec.text, self._config.text_bytes)
        depth = self._config.depth
        blanks = self._config.blanks(is_compact=spec.is_compact)
        match spec.form:
            case "json_object":
                return _json({"type": "object"}, blanks)
            case "json_schema":
                return _json(self._schema(read_schema(spec.text, depth)), blanks)
            case "regex":
                return _lark(f"start: {_expression(spec.text)}", [spec.text])
            case "choice":
                choices = read_choices(spec.text)
                return _lark(_one_of(choices), choices)
            case "grammar":
                return self._grammar(spec.text)
            case "structural_tag":
                return self._format(
                    tags_of(read_structural_tag(spec.text, depth)), spec.text, blanks
                )
            case "format":
                return self._format(read_format(spec.text, depth), spec.text, blanks)

    def _schema(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """Return the schema, all keywords of which are supported."""
        check_schema(
            schema,
            guide="llguidance",
            knows=STANDARD - _UNKNOWN,
            formats=FORMATS,
            most=self._config.schemas,
        )
        if schema is False:
            raise GrammarRefused("json_schema: false allows nothing")
        if schema is True:
            return {}
        found: dict[str, Any] = without_remarks(schema, FORMATS)
        found.pop("x-guidance", None)  # it would change the options
        return found

    def _grammar(self, text: str) -> str:
        # How much a client's own rules may force is not known, so they force nothing.
        return _lark(self._rules(text), None)

    def _rules(self, text: str) -> str:
        """Return the Lark of a grammar."""
        if ebnf.is_ebnf(text):
            return ebnf_lark.lark_of(ebnf.read(text))
        if len(_LARK_RULE.findall(text)) > _RULES:
            raise GrammarRefused(f"grammar has more than {_RULES:,} rules")
        # Directives of the client are removed: the first line of the grammar sets the options.
        return _LARK_PART.sub(self._by_id, _DIRECTIVE.sub("", text))

    def _by_id(self, part: re.Match[str]) -> str:
        """Replace a special token named by its content with its id, as Lark requires."""
        token = self._special.get(part[0])
        return part[0] if token is None else f"<[{token}]>"

    def _format(self, found: Format, text: str, blanks: int) -> str:
        """Convert a format; grammars of clients become separate grammars with their own names."""
        grammars: list[str] = []

        def rule(spec: GuideSpec) -> str:
            if spec.form == "grammar":
                grammars.append(self._rules(spec.text))
                return f"@part_{len(grammars)}"
            return _inner_json(self._schema(read_schema(spec.text, self._config.depth)), blanks)

        written = Writer(self._special, rule, _terminal).grammar_of(found)
        if not grammars:
            return _lark(written, strings_in(json.loads(text)))
        # As with a grammar alone, the amount of forced text is not known.
        parts = [{"lark_grammar": f"{NOTHING}\n{one}"} for one in (written, *grammars)]
        names = ["format", *(f"part_{i + 1}" for i in range(len(grammars)))]
        return json.dumps(
            {"grammars": [{"name": n, **part} for n, part in zip(names, parts, strict=True)]}
        )


def _json(schema: dict[str, Any], blanks: int) -> str:
    return _lark(f"start: {_inner_json(schema, blanks)}", strings_in(schema))


def _inner_json(schema: dict[str, Any], blanks: int) -> str:
    # Unsupported keywords are errors, and `oneOf` is not replaced by `anyOf`.
    options = {
        "whitespace_pattern": f"[ \\t\\n\\r]{{1,{blanks}}}",
        "lenient": False,
        "coerce_one_of": False,
    }
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _terminal(spec: GuideSpec) -> str | None:
    """Return a regular language as a part of a terminal; None if it is not regular."""
    if spec.form == "regex":
        return _expression(spec.text)
    if spec.form == "choice":
        return " | ".join(json.dumps(one, ensure_ascii=False) for one in read_choices(spec.text))
    return None


def _expression(text: str) -> str:
    return f"/{regex_to_lark(portable(text), '')}/"


def _lark(text: str, texts: Iterable[str] | None) -> str:
    """Return a grammar whose forcing is limited by some texts, or, for None, disabled."""
    first = NOTHING if texts is None else header(texts)
    return LLMatcher.grammar_from_lark(f"{first}\n{text}")


def _one_of(choices: Sequence[str]) -> str:
    """Return one terminal: alternatives of a rule would all be parsed at once."""
    literals = [json.dumps(one, ensure_ascii=False) for one in choices if one]
    if not literals:
        return 'start: ""'
    may_be_empty = "?" if "" in choices else ""
    return f"start: CHOICE{may_be_empty}\nCHOICE: {' | '.join(literals)}"
