"""Parser of EBNF, as ``root ::= "a" rule | [b-z]*``: the format that llama.cpp calls GBNF."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from gatewayd_hooks.guiding import GrammarRefused

DEPTH = 100
_LEVELS = 3 * DEPTH + 1
"""Levels of parts within each other: a bracket has alternatives, a sequence and a quantifier."""
_RULES = 2000
# All repetitions are possessive: the text is a client's, and is read in linear time.
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*+)++)
    |(?P<name>[A-Za-z_][\w-]*+)(?P<defines>(?:\s|\#[^\n]*+)*+::=)?
    |(?P<text>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')
    |(?P<letters>\[(?:[^\]\\]|\\.)*+\])
    |(?P<times>[*+?]|\{\s*+\d++\s*+(?:,\s*+\d*+\s*+)?\})
    |(?P<sign>[()|.])""",
    re.VERBOSE | re.DOTALL,
)
# A rule begins at the start of a line, also after empty lines.
_RULE = re.compile(r"(?m)^[^\S\n]*+[A-Za-z_][\w-]*+\s*+::=")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


@dataclass(frozen=True, slots=True)
class EbnfNode:
    """Part of a rule.

    Attributes:
        op: ``lit`` (Lark for a terminal), ``ref`` (a rule's name), ``seq``, ``alt`` or ``rep``.
        text: of ``lit`` and ``ref``; the quantifier for ``rep``.
        parts: of the others.
    """

    op: str
    text: str = ""
    parts: tuple[EbnfNode, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Recursive descent parser of rules."""

    tokens: list[tuple[str, str]]
    place: int = 0
    depth: int = 0
    rules: dict[str, EbnfNode] = field(default_factory=dict)

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def read(self) -> dict[str, EbnfNode]:
        """Return all rules by name."""
        while self.place < len(self.tokens):
            kind, name = self.peek()
            if kind != "defines":
                raise GrammarRefused(f"grammar: expected a rule (name ::= ...) before {name!r}")
            if name in self.rules:
                raise GrammarRefused(f"grammar: rule {name} is defined twice")
            self.place += 1
            self.rules[name] = self._alternatives()
        return self.rules

    def _alternatives(self) -> EbnfNode:
        self.depth += 1
        # Bounds the recursion of this parser: the text is a client's.
        if self.depth > DEPTH:
            raise GrammarRefused(f"grammar is nested deeper than {DEPTH} brackets")
        found = [self._sequence()]
        while self.peek() == ("sign", "|"):
            self.place += 1
            found.append(self._sequence())
        self.depth -= 1
        return found[0] if len(found) == 1 else EbnfNode("alt", parts=tuple(found))

    def _sequence(self) -> EbnfNode:
        found: list[EbnfNode] = []
        while True:
            kind, text = self.peek()
            # An alternative may be empty: a sequence without parts.
            if kind in ("end", "defines") or (kind, text) in (("sign", "|"), ("sign", ")")):
                return found[0] if len(found) == 1 else EbnfNode("seq", parts=tuple(found))
            self.place += 1
            if kind == "times":
                if not found:
                    raise GrammarRefused(f"grammar: there is nothing before {text}")
                found[-1] = EbnfNode("rep", re.sub(r"\s", "", text), (found[-1],))
            else:
                found.append(self._item(kind, text))

    def _item(self, kind: str, text: str) -> EbnfNode:
        if kind == "name":
            return EbnfNode("ref", text)
        if kind == "text":
            return EbnfNode("lit", _quoted("".join(_unescaped(text[1:-1]))))
        if kind == "letters":
            return EbnfNode("lit", _class(text[1:-1]))
        if text == ".":
            return EbnfNode("lit", "/(?s:.)/")
        inner = self._alternatives()
        if self.peek() != ("sign", ")"):
            raise GrammarRefused("grammar: a bracket is not closed")
        self.place += 1
        return inner


def is_ebnf(text: str) -> bool:
    """Whether a grammar is EBNF and not Lark."""
    return _RULE.search(text) is not None


def read(text: str) -> dict[str, EbnfNode]:
    """Parse rules by name.

    Raises:
        GrammarRefused: they are invalid, or there is no ``root``.
    """
    rules = _Reader(_tokens(text)).read()
    if "root" not in rules:
        raise GrammarRefused("grammar has no rule root")
    if len(rules) > _RULES:
        raise GrammarRefused(f"grammar has {len(rules):,} rules, of which {_RULES:,} are allowed")
    for name, node in rules.items():
        # Bounds the recursion of the conversion: quantifiers follow each other without brackets.
        if _num_levels(node) > _LEVELS:
            raise GrammarRefused(
                f"grammar: rule {name} has quantifiers nested deeper than {_LEVELS}"
            )
        for missing in refs(node) - rules.keys():
            raise GrammarRefused(f"grammar: rule {name} refers to {missing}, which is not defined")
    return rules


def refs(node: EbnfNode) -> set[str]:
    """Return the rules that a part refers to."""
    found, open_ = set(), [node]
    while open_:
        one = open_.pop()
        if one.op == "ref":
            found.add(one.text)
        open_ += one.parts
    return found


def _num_levels(node: EbnfNode) -> int:
    """Return the number of levels of a part and the parts within it."""
    count, level = 0, [node]
    while level:
        count, level = count + 1, [part for one in level for part in one.parts]
    return count


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            line = text.count("\n", 0, place) + 1
            raise GrammarRefused(f"grammar, line {line}: cannot read {text[place : place + 20]!r}")
        kind = str(token.lastgroup)
        if kind == "defines":
            found.append((kind, token["name"]))
        elif kind != "space":
            found.append((kind, token[0]))
        place = token.end()
    return found


def _unescaped(text: str) -> list[str]:
    """Return the characters of a text with escapes decoded."""
    found = []
    for two, four, eight, other, plain in _ESCAPE.findall(text):
        if code := two or four or eight:
            # Surrogates are code points, but cannot be encoded as UTF-8.
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
                raise GrammarRefused(f"grammar: there is no character {code}")
            found.append(chr(int(code, 16)))
        else:
            found.append(plain or _LETTERS.get(other, other))
    return found


def _quoted(text: str) -> str:
    """Return a Lark string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _class(text: str) -> str:
    """Convert a character class to a regular expression."""
    parts = re.findall(r"\\x..|\\u.{4}|\\U.{8}|\\.|.", text.removeprefix("^"), re.DOTALL)
    # Characters are written as code points, so that none has a meaning in the expression.
    inner, i = "", 0
    while i < len(parts):
        (first,) = _unescaped(parts[i])
        if i + 2 < len(parts) and parts[i + 1] == "-":
            (last,) = _unescaped(parts[i + 2])
            if last < first:
                raise GrammarRefused(f"grammar: [{text}] has a range that ends before it begins")
            inner += f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}"
            i += 3
        else:
            inner += f"\\x{{{ord(first):x}}}"
            i += 1
    if not inner:
        raise GrammarRefused("grammar: [] has no characters")
    return f"/[{'^' if text.startswith('^') else ''}{inner}]/"
