"""Every form of a ``GuideSpec`` as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, regex_to_lark

from gatewayd_guide_llguidance import ebnf, ebnf_lark, tags
from gatewayd_guide_llguidance.expressions import portable
from gatewayd_guide_llguidance.forcing import NOTHING, header, strings_in
from gatewayd_hooks.grammars import check_size, read_choices, read_schema, read_structural_tag
from gatewayd_hooks.guiding import GrammarRefused
from gatewayd_hooks.schemas import STANDARD, check_schema, without_remarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatewayd_guide_llguidance.config import LlguidanceConfig
    from gatewayd_hooks.guiding import GuideSpec

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
_UNKNOWN = {"extends", "disallow", "divisibleBy"}  # of old drafts, and ignored by llguidance
_LARK_RULE = re.compile(r"(?m)^[ \t]*[?!]?[A-Za-z_]\w*[^:\n\"/]*:")
_LARK_PART = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|<[^<>\s"\[\]]+>')
_DIRECTIVE = re.compile(r"(?m)^[ \t]*%llguidance[ \t]*\{[^{}]*\}")
_RULES = 2000


class Forms:
    """Translates within limits.

    Args:
        config: the limits.
        special: contents of special tokens, and their ids.
    """

    def __init__(self, config: LlguidanceConfig, special: Mapping[str, int]) -> None:
        self._config = config
        self._special = special
        self._options = {
            "whitespace_pattern": f"[ \\t\\n\\r]{{1,{config.whitespace}}}",
            "lenient": False,
            "coerce_one_of": False,
        }

    def grammar_of(self, spec: GuideSpec) -> str:
        """Translate.

        Raises:
            GrammarRefused: it is wrong or too large.
        """
        check_size(spec.form, spec.text, self._config.text_bytes)
        match spec.form:
            case "json_object":
                return self._json({"type": "object"})
            case "json_schema":
                return self._json(self._schema(read_schema(spec.text, self._config.depth)))
            case "regex":
                expression = regex_to_lark(portable(spec.text), "")
                return _lark(f"start: /{expression}/", [spec.text])
            case "choice":
                choices = read_choices(spec.text)
                return _lark(_one_of(choices), choices)
            case "grammar":
                return self._grammar(spec.text)
            case "structural_tag":
                return self._structural_tag(spec.text)

    def _json(self, schema: dict[str, Any]) -> str:
        inner = json.dumps({**schema, "x-guidance": self._options})
        return _lark(f"start: %json {inner}", strings_in(schema))

    def _schema(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """The same schema, all of which is kept."""
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
        found.pop("x-guidance", None)  # would change the options
        return found

    def _grammar(self, text: str) -> str:
        if ebnf.is_ebnf(text):
            return _lark(ebnf_lark.lark_of(ebnf.read(text)), None)
        if len(_LARK_RULE.findall(text)) > _RULES:
            raise GrammarRefused(f"grammar has more than {_RULES:,} rules")
        return _lark(_LARK_PART.sub(self._by_id, _DIRECTIVE.sub("", text)), None)

    def _by_id(self, part: re.Match[str]) -> str:
        """A special token that is named by its content, as llguidance's Lark allows."""
        token = self._special.get(part[0])
        return part[0] if token is None else f"<[{token}]>"

    def _structural_tag(self, text: str) -> str:
        tag = read_structural_tag(text, self._config.depth)
        structures = tuple(one._replace(schema=self._schema(one.schema)) for one in tag.structures)
        otherwise = None if tag.otherwise is None else self._schema(tag.otherwise)
        tag = tag._replace(structures=structures, otherwise=otherwise)
        written = tags.lark_of(tag, self._special, self._options)
        return _lark(written, strings_in(json.loads(text)))


def _lark(text: str, texts: Iterable[str] | None) -> str:
    """A grammar that forces no more than one of some texts can, or, of none, nothing."""
    first = NOTHING if texts is None else header(texts)
    return LLMatcher.grammar_from_lark(f"{first}\n{text}")


def _one_of(choices: Sequence[str]) -> str:
    """One terminal: as alternatives of a rule they would all be parsed at once."""
    said = [json.dumps(one, ensure_ascii=False) for one in choices if one]
    if not said:
        return 'start: ""'
    may_be_empty = "?" if "" in choices else ""
    return f"start: CHOICE{may_be_empty}\nCHOICE: {' | '.join(said)}"
