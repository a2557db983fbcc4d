"""Converts EBNF to Lark.

llguidance tokenizes a text into lexemes by longest match, and parses those. Non-recursive rules
therefore become one terminal each, as large as possible: within it nothing is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gatewayd_guide_llguidance.ebnf import EbnfNode, refs


def lark_of(rules: dict[str, EbnfNode]) -> str:
    """Convert rules; ``root`` is the start."""
    return _Writer(rules).write()


class _Writer:
    """Writes Lark; terminals are in upper case."""

    def __init__(self, rules: dict[str, EbnfNode]) -> None:
        self._rules = rules
        self._plain = _plain(rules)
        self._terminals: list[str] = []
        # Names are generated: Lark tells rules from terminals by their case, and a client's name
        # may have any.
        self._names = {
            name: f"RULE_{i}" if name in self._plain else f"rule_{i}"
            for i, name in enumerate(rules)
        }

    def write(self) -> str:
        """Return all rules."""
        lines = [f"start: {self._names['root']}"]
        for name, node in self._rules.items():
            written = self._terminal(node) if name in self._plain else self._rule(node)
            lines.append(f"{self._names[name]}: {written}")
        return "\n".join([*lines, *self._terminals])

    def _is_plain(self, node: EbnfNode) -> bool:
        return refs(node) <= self._plain

    def _terminal(self, node: EbnfNode) -> str:
        """Write a part that is not split into lexemes."""
        if node.op == "ref":
            return self._names[node.text]
        return _written(node, [self._terminal(part) for part in node.parts])

    def _rule(self, node: EbnfNode) -> str:
        """Write a part that may be split between its parts."""
        if self._is_plain(node):
            name = f"TERM_{len(self._terminals)}"
            self._terminals.append(f"{name}: {self._terminal(node)}")
            return name
        if node.op == "ref":
            return self._names[node.text]
        parts = self._joined(node.parts) if node.op == "seq" else node.parts
        return _written(node, [self._rule(part) for part in parts])

    def _joined(self, parts: Sequence[EbnfNode]) -> list[EbnfNode]:
        """Return the sequence with adjacent non-recursive parts merged into one terminal."""
        found: list[EbnfNode] = []
        for is_plain, group in groupby(parts, self._is_plain):
            run = tuple(group)
            found += [EbnfNode("seq", parts=run)] if is_plain and len(run) > 1 else run
        return found


def _written(node: EbnfNode, parts: list[str]) -> str:
    match node.op:
        case "seq":
            return " ".join(f"({part})" for part in parts) or '""'
        case "alt":
            return " | ".join(f"({part})" for part in parts)
        case "rep":
            return f"({parts[0]}){node.text}"
        case _:
            return node.text


def _plain(rules: dict[str, EbnfNode]) -> set[str]:
    """Return the non-recursive rules, which refer only to non-recursive ones."""
    waits = {name: refs(node) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, named in waits.items():
        for ref in named:
            users[ref].append(name)
    # Kahn's algorithm: a rule is ready once all that it refers to are; rules in a cycle never are.
    ready = [name for name, named in waits.items() if not named]
    found: set[str] = set()
    while ready:
        name = ready.pop()
        found.add(name)
        for user in users[name]:
            waits[user].discard(name)
            if not waits[user]:
                ready.append(user)
    return found
