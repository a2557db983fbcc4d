"""Linear time: expressions and scans over client input.

The inventory is the source itself: every call of ``re`` in the rooms that serve requests is found
in its syntax tree, and a file that nobody has classified fails here.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from gatewayd.errors import InvalidRequest
from gatewayd.resources.responses.response_object import with_response_fields
from gatewayd.text.text_model import TextModel
from gatewayd_engine.model import embedded
from gatewayd_guide_llguidance import ebnf, ebnf_lark
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.expressions import portable
from gatewayd_guide_llguidance.forcing import header
from gatewayd_guide_llguidance.grammar_converter import GrammarConverter
from gatewayd_guide_xgrammar.expressions import check_counts, whole
from gatewayd_hooks.guiding import GrammarRefused, GuideSpec
from gatewayd_hooks.helpers.grammars import read_choices, read_structural_tag
from gatewayd_hooks.requests.nesting import field_too_deep
from tests.complexity import MOST_GROWTH, TIMES, best_seconds, check_linear

ROOT = Path(__file__).parents[2]
ROOMS = ("gatewayd", "engine/gatewayd_engine", "plugins")
OPERATORS = (
    "gatewayd/cli/authoring/",
    "gatewayd/cli/bench/",
    "gatewayd/cli/",
    "gatewayd/config/credentials.py",
    "gatewayd/resources/files/content_store.py",
    "gatewayd/http/schema/openapi.py",
    "gatewayd/store/schema_check.py",
    "gatewayd/tenants/actions.py",
    "gatewayd/tenants/records.py",
    "plugins/gatewayd_hooks/helpers/children.py",
    "plugins/gatewayd_hooks/console.py",
    "plugins/gatewayd_hooks/testing/",
)
"""What they read is on the machine, or comes over the admin socket."""
CHECKPOINTS = (
    "engine/gatewayd_engine/model/",
    "engine/gatewayd_engine/offline/quantize/",
    "engine/gatewayd_engine/offline/train/",
    "gatewayd/hub/",
    "plugins/gatewayd_hooks/helpers/spelling.py",
    "plugins/gatewayd_model_transformers/",
    "plugins/gatewayd_proto_ollama/models.py",
    "plugins/gatewayd_quant_compressed_tensors/",
)
CLIENTS = (
    "gatewayd/http/asgi.py",
    "gatewayd/http/in_process.py",
    "gatewayd/http/server/edge_chunks.py",
    "gatewayd/http/server/authentication.py",
    "gatewayd/http/protocols/route.py",
    "gatewayd/http/server/request_id.py",
    "gatewayd/tracing/log_buffer.py",
    "gatewayd/resources/responses/response_object.py",
    "gatewayd/resources/responses/records.py",
    "gatewayd/tenants/keys.py",
    "gatewayd/text/private_special_tokens.py",
    "gatewayd/text/special_tokens.py",
    "gatewayd/text/template_meter.py",
    "gatewayd/text/tokenizer.py",
    "plugins/gatewayd_guide_llguidance/ebnf.py",
    "plugins/gatewayd_guide_llguidance/expressions.py",
    "plugins/gatewayd_guide_llguidance/forcing.py",
    "plugins/gatewayd_guide_llguidance/grammar_converter.py",
    "plugins/gatewayd_guide_llguidance/lexers.py",
    "plugins/gatewayd_guide_llguidance/matching.py",
    "plugins/gatewayd_guide_llguidance/tags.py",
    "plugins/gatewayd_guide_xgrammar/expressions.py",
    "plugins/gatewayd_guide_xgrammar/strategy.py",
    "plugins/gatewayd_hooks/helpers/calling.py",
    "plugins/gatewayd_hooks/helpers/grammars.py",
    "plugins/gatewayd_hooks/requests/nesting.py",
    "plugins/gatewayd_hooks/requests/num_values.py",
    "plugins/gatewayd_proto_anthropic/error_fields.py",
    "plugins/gatewayd_proto_ollama/error_fields.py",
    "plugins/gatewayd_tools_mistral/answer_parser.py",
    "plugins/gatewayd_tools_mistral/strategy.py",
)
_FROM_ANYWHERE = frozenset(("search", "sub", "subn", "findall", "finditer", "split"))
_LETTERS = 4000
_SUSPICIOUS_SECONDS = 0.002
"""What takes longer is looked at with more letters, too."""
_HANGS_SECONDS = 0.5
_SCANNED = 30_000
"""Letters, of those who read whole grammars."""


class Call(NamedTuple):
    """A use of ``re``.

    Attributes:
        file: under the root.
        pattern: None where it is made of something else.
        is_anywhere: whether it is looked for, and not only at a place.
    """

    file: str
    pattern: re.Pattern[Any] | None
    is_anywhere: bool


def calls() -> Iterator[Call]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text("utf-8")
            if not re.search(r"\bre\b", source):  # most files, which take longest to parse
                continue
            tree = ast.parse(source)
            methods: dict[str, set[str]] = {}
            names: dict[int, str] = {}
            for node in ast.walk(tree):
                match node:
                    case ast.Attribute(ast.Name(name), method):
                        methods.setdefault(name, set()).add(method)
                    case ast.Assign([ast.Name(name)], ast.Call() as made):
                        names[id(made)] = name
            for node in ast.walk(tree):
                match node:
                    case ast.Call(ast.Attribute(ast.Name("re"), function), [first, *more]):
                        used = methods.get(names.get(id(node), ""), {"search"})
                        used = used if function == "compile" else {function}
                        yield Call(
                            str(path.relative_to(ROOT)),
                            _compiled(first, more[-1:] if function == "compile" else ()),
                            bool(used & _FROM_ANYWHERE),
                        )


def _compiled(first: ast.expr, flags: Any) -> re.Pattern[Any] | None:
    if not isinstance(first, ast.Constant):
        return None
    chosen = eval(ast.unparse(flags[0]), {"re": re}) if flags else 0
    return re.compile(first.value, chosen)


ALL = tuple(calls())


def test_every_file_with_an_expression_is_classified() -> None:
    kinds = {
        call.file: [
            kind
            for kind in (OPERATORS, CHECKPOINTS, CLIENTS)
            if any(call.file.startswith(prefix) for prefix in kind)
        ]
        for call in ALL
    }
    assert {file: len(found) for file, found in kinds.items()} == dict.fromkeys(kinds, 1)
    assert len(ALL) > 80
    for prefix in (*OPERATORS, *CHECKPOINTS, *CLIENTS):
        assert any(file.startswith(prefix) for file in kinds), f"{prefix} has no expression now"


# Expressions, pumped


def alphabet_of(pattern: re.Pattern[Any]) -> list[str]:
    """One letter for each thing that an expression tells apart."""
    written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    letters = dict.fromkeys(letter for letter in '" \n\\a1' if letter)
    for letter in re.sub(r"\?P<\w+>|\\[AbBdDsSwWZntrux]|\(\?[a-z:!=<]*", "", written):
        if not letter.isalnum() and letter not in "\t\r":
            letters[letter] = None
    return list(letters)[:14]


def prefixes_of(pattern: re.Pattern[Any]) -> list[str]:
    """Beginnings after which a part of an expression repeats."""
    written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    literal = re.findall(
        r"(?:[\w ]|\\[^\w\s])+", re.sub(r"\\[AbBdDsSwWZnt]|\[[^]]*\]", "|", written)
    )
    said = [re.sub(r"\\(.)", r"\1", one).strip() for one in literal]
    return list(dict.fromkeys(("", "a", "{1,", "a#", '"', *said[:3])))


def seconds_of(pattern: re.Pattern[Any], text: str, *, is_anywhere: bool) -> float:
    given: Any = text if isinstance(pattern.pattern, str) else text.encode()
    began = time.thread_time()
    if is_anywhere:
        for _ in pattern.finditer(given):
            pass
    else:
        pattern.match(given)
        pattern.fullmatch(given)
    return time.thread_time() - began


class Hangs(Exception):
    pass


def _hangs(_number: int, _frame: FrameType | None) -> None:
    raise Hangs


@pytest.fixture
def _alarm() -> Iterator[None]:
    """The module ``re`` looks for signals while it backtracks."""
    before = signal.signal(signal.SIGVTALRM, _hangs)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def slow_texts(call: Call) -> Iterator[tuple[str, str]]:
    """Beginnings and pumps for which an expression is slower than it may be."""
    pattern = call.pattern
    assert pattern is not None
    letters, prefixes = alphabet_of(pattern), prefixes_of(pattern)
    pumps = [*letters, *map("".join, itertools.permutations(letters, 2))]
    pumps += ["\\" * is_escaped + one for one in prefixes if one for is_escaped in (0, 1)]
    for prefix, pump in itertools.product(prefixes, pumps):
        texts = [
            prefix + pump * (size // len(pump)) + "\0" for size in (_LETTERS, TIMES * _LETTERS)
        ]
        signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS_SECONDS)
        try:
            took = seconds_of(pattern, texts[0], is_anywhere=call.is_anywhere)
            if took > _SUSPICIOUS_SECONDS:  # or the machine was busy
                short, long = (
                    min(seconds_of(pattern, text, is_anywhere=call.is_anywhere) for _ in range(3))
                    for text in texts
                )
                is_slow = short > _SUSPICIOUS_SECONDS and long > MOST_GROWTH * short
            else:
                is_slow = False
        except Hangs:
            is_slow = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if is_slow:
            yield prefix, pump


@pytest.mark.parametrize(
    "call",
    [call for call in ALL if call.pattern and any(map(call.file.startswith, CLIENTS))],
    ids=lambda call: f"{call.file}:{call.pattern.pattern!r:.40}",
)
@pytest.mark.usefixtures("_alarm")
def test_no_expression_over_what_clients_write_is_slow(call: Call) -> None:
    assert next(slow_texts(call), None) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?m)^[ \t]*[?!]?[A-Za-z_]\w*[^:\n\"/]*:",
        r'"(?:\\.|[^"\\\n])*"',
        r"(?m)^\s*[A-Za-z_][\w-]*\s*::=",
        r"\\(?:p\{[^}]*\}|.)",
        r"a(?:\s|\#[^\n]*)*::=",
    ],
)
@pytest.mark.usefixtures("_alarm")
def test_an_expression_that_is_slow_would_be_found(pattern: str) -> None:
    """Those that were here once: all quadratic, the last exponential."""
    assert next(slow_texts(Call("", re.compile(pattern), True)), None) is not None


# What reads grammars, whole


FORMS = GrammarConverter(LlguidanceConfig(text_bytes=1 << 20), {"<tool_call>": 3})


def _tags(size: int, begin: Callable[[int], str], trigger: Callable[[int], str]) -> str:
    count = size // 40
    structures = [{"begin": begin(i), "schema": True, "end": ""} for i in range(count)]
    return json.dumps({"triggers": [trigger(i) for i in range(count)], "structures": structures})


SCANS: dict[str, tuple[Callable[[str], object], Callable[[int], str]]] = {
    "a line of Lark without a colon": (FORMS._rules, lambda n: "a" * n),
    "escaped quotes in Lark": (FORMS._rules, lambda n: '"' + r"\"" * (n // 2)),
    "escaped slashes in Lark": (FORMS._rules, lambda n: "/" + r"\/" * (n // 2)),
    "lines of Lark": (FORMS._rules, lambda n: "a\n" * (n // 2)),
    "angles in Lark": (FORMS._rules, lambda n: "<" * n),
    "directives in Lark": (FORMS._rules, lambda n: "%llguidance {\n" * (n // 14)),
    "empty lines": (ebnf.is_ebnf, lambda n: "\n" * n),
    "names without rules": (ebnf.is_ebnf, lambda n: "a \n" * (n // 3)),
    "comments behind a name": (ebnf.read, lambda n: "a ::= b " + "# " * (n // 2) + "\x00"),
    "a count that does not end": (ebnf.read, lambda n: "a ::= b{1," + " " * n),
    "a string that does not end": (ebnf.read, lambda n: 'a ::= "' + "b" * n),
    "letters that do not end": (ebnf.read, lambda n: "a ::= " + "[" * n),
    "plain neighbours": (
        lambda text: ebnf_lark.lark_of(ebnf.read(text)),
        lambda n: "root ::= root | " + '"a" ' * (n // 4),
    ),
    "properties that do not end": (portable, lambda n: r"\p{" * (n // 3)),
    "brackets": (portable, lambda n: "[" * n),
    "classes of letters": (portable, lambda n: "[:a" * (n // 3)),
    "counts": (lambda text: header([text]), lambda n: "{1" * (n // 2)),
    "spaces in a count": (lambda text: header([text]), lambda n: "{ " * (n // 2)),
    "XGrammar: brackets": (whole, lambda n: "[" * n),
    "XGrammar: spaces in a count": (check_counts, lambda n: "{1," + " " * n),
    "choices": (read_choices, lambda n: json.dumps(["\\" * 20] * (n // 45))),
    "choices that do not end": (read_choices, lambda n: '["' + r"\"" * (n // 2)),
    "many triggers": (
        lambda text: read_structural_tag(text, 9),
        lambda n: _tags(n, "z{:06d}".format, "z{:06d}".format),
    ),
    "triggers in one another": (
        lambda text: FORMS.grammar_of(GuideSpec("structural_tag", text)),
        lambda n: _tags(n, "z{:06d}".format, lambda i: "z" if i == 0 else f"z{i:06d}"),
    ),
    "a body that is deep, and does not end": (
        lambda text: field_too_deep(text.encode()),
        lambda n: '{"a":"' + r"\"" * (n // 2),
    ),
    "a refusal with a client's words": (
        lambda text: with_response_fields(InvalidRequest(text)),
        lambda n: "tools[1" * (n // 7) + "messages" * (n // 8),
    ),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.usefixtures("_alarm")
def test_the_time_that_a_text_takes_is_in_proportion_to_its_length(name: str) -> None:
    read, text_of = SCANS[name]

    def seconds(size: int) -> float:
        text = text_of(size)

        def scan() -> None:
            with contextlib.suppress(GrammarRefused, ValueError, RecursionError):
                read(text)

        return best_seconds(scan)

    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    small, large = seconds(_SCANNED), seconds(TIMES * _SCANNED)
    check_linear(small, large)
    assert large < 2


def test_special_tokens_in_a_text_are_found_in_linear_time() -> None:
    tokenizer = TextModel.from_folder(embedded.folder("nano")).tokenizer
    for pump in ("<|", "<", "<|im_end", "<tool_"):

        def seconds(size: int, pump: str = pump) -> float:
            text = pump * (size // len(pump))

            def find() -> None:
                tokenizer.spells_special(text)
                tokenizer.rename_special_tokens(text)

            return best_seconds(find)

        check_linear(seconds(_SCANNED), seconds(TIMES * _SCANNED), floor=0.05)
