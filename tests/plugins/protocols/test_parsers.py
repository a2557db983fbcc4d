"""Built-in output parsers: contract, and outputs of their model families."""

from __future__ import annotations

import json

import pytest

from gatewayd_hooks.parsing import (
    Arguments,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolParserStrategy,
)
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.testing.parsing import (
    ReasoningParserConformance,
    ToolParserConformance,
    read,
)
from gatewayd_reasoning_think.config import ThinkConfig
from gatewayd_reasoning_think.strategy import Think
from gatewayd_tools_hermes.config import HermesConfig
from gatewayd_tools_hermes.strategy import Hermes
from gatewayd_tools_llama3.config import Llama3Config
from gatewayd_tools_llama3.strategy import Llama3
from gatewayd_tools_mistral.config import MistralConfig
from gatewayd_tools_mistral.strategy import Mistral


class TestHermes(ToolParserConformance):
    def make(self) -> Hermes:
        return Hermes(HermesConfig())


class TestLlama3(ToolParserConformance):
    def make(self) -> Llama3:
        return Llama3(Llama3Config())


class TestMistral(ToolParserConformance):
    def make(self) -> Mistral:
        return Mistral(MistralConfig())


class _Newer(Mistral):
    def open(self, resources: GatewayResources) -> None:
        super().open(GatewayResources("model", 1, "[TOOL_CALLS]{{ name }}[ARGS]"))


class TestNewerMistral(ToolParserConformance):
    def make(self) -> Mistral:
        return _Newer(MistralConfig())


class TestThink(ReasoningParserConformance):
    def make(self) -> Think:
        return Think(ThinkConfig())


TOOLS = [Tool("f", "", None, strict=False), Tool("g", "", None, strict=False)]
F = [ToolCall(0, "f"), Arguments(0, '{"a": 1}')]
G = [ToolCall(1, "g"), Arguments(1, "{}")]
"""Two calls."""

HERMES = {
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>': F,
    'Let me see.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>\n': [Text("Let me see."), *F, *G],
    '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> Done.': [*F, Text("Done.")],
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>': F,
    '<tool_call>{"name": "f", "arguments": {"a": 1}}': F,
    '<tool_call>{"name": "f"}</tool_call>': [ToolCall(0, "f"), Arguments(0, "{}")],
    '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>': [
        ToolCall(0, "f"),
        Arguments(0, '{"a": "</tool_call>"}'),
    ],
    '<tool_call>{"name": "f", "arguments": ""}</tool_call>': [
        ToolCall(0, "f"),
        Arguments(0, "{}"),
    ],
    **{
        text: [Text(text)]
        for text in (
            '<tool_call>{"name": "f", "arguments": "{bad"}</tool_call>',
            '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
            r'<tool_call>{"name": "f", "arguments": "{\ud800}"}</tool_call>',
            r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>',
        )
    },
    "<tool_call>f(1)</tool_call>": [Text("<tool_call>f(1)</tool_call>")],
    '<tool_call>{"name": 1}</tool_call>x': [Text('<tool_call>{"name": 1}</tool_call>x')],
    "a <tool_call b": [Text("a <tool_call b")],
}
LLAMA3 = {
    '{"name": "f", "parameters": {"a": 1}}': F,
    '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}': F + G,
    '{"type": "function", "name": "f", "parameters": {"a": 1}}\n': F,
    '{"name": "f", "parameters": {"a": 1}} is what I call.': [*F, Text("is what I call.")],
    '{"name": "Ada", "parameters": {}}': [Text('{"name": "Ada", "parameters": {}}')],
    '<|python_tag|>brave.call("x")': [Text('<|python_tag|>brave.call("x")')],
    "Sure.": [Text("Sure.")],
    '{"name": "f", "parameters": {"a": 1}}; or not': [*F, Text("; or not")],
}
MISTRAL = {
    '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]': F + G,
    '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]': F,
    '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}': F + G,
    'Well.[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}': [Text("Well."), *F],
    '[TOOL_CALLS]f{"a": 1}': F,
    "[TOOL_CALLS]f(1)": [Text("[TOOL_CALLS]f(1)")],
    '[TOOL_CALLS][{"a": 1}]': [Text('[TOOL_CALLS][{"a": 1}]')],
    f"[TOOL_CALLS]{'x' * 300}": [Text(f"[TOOL_CALLS]{'x' * 300}")],
}
CASES = [
    *((Hermes(HermesConfig()), *case) for case in HERMES.items()),
    *((Llama3(Llama3Config()), *case) for case in LLAMA3.items()),
    *((Mistral(MistralConfig()), *case) for case in MISTRAL.items()),
]


@pytest.mark.parametrize(("strategy", "answer", "parts"), CASES)
def test_what_models_say(
    strategy: Hermes | Llama3 | Mistral, answer: str, parts: list[Part]
) -> None:
    assert read(strategy.parser(TOOLS), list(answer)) == parts


THINK = [
    ("", "<think>\nHm.\n</think>\n\nYes.", [Reasoning("Hm."), Text("Yes.")]),
    ("<think>\n", "Hm.\n</think>\n\nYes.", [Reasoning("Hm."), Text("Yes.")]),
    ("<think>\n\n</think>\n\n", "Yes.", [Text("Yes.")]),
    ("", "<think></think>Yes. </think>", [Text("Yes. </think>")]),
    ("", "<think>Hm", [Reasoning("Hm")]),
    ("", "A <think>b</think>", [Text("A <think>b</think>")]),
    ("<think>", "<think>Hm</think>a", [Reasoning("<think>Hm"), Text("a")]),
]


@pytest.mark.parametrize(("prompt", "answer", "parts"), THINK)
def test_what_models_think(prompt: str, answer: str, parts: list[Part]) -> None:
    assert read(Think(ThinkConfig()).parser(prompt), list(answer)) == parts


def test_templates_say_who_reads_their_models() -> None:
    tools: list[ToolParserStrategy] = [
        Hermes(HermesConfig()),
        Llama3(Llama3Config()),
        Mistral(MistralConfig()),
    ]
    templates = [
        "<tool_call>\\n{{ call | tojson }}",
        'Respond in the format {"name": function name, "parameters": dictionary}',
        "{{ '[TOOL_CALLS]' }}",
    ]
    suits = [[one.suits(template) for one in tools] for template in templates]
    assert suits == [[True, False, False], [False, True, False], [False, False, True]]
    assert Think(ThinkConfig()).suits("{{ '<think>\\n' }}")


def test_ids_of_mistral_are_nine_letters_or_digits() -> None:
    mistral = Mistral(MistralConfig())
    assert mistral.call_id("abcDEF123") == "abcDEF123"
    assert len(mistral.call_id("call_1")) == 9
    assert mistral.call_id("call_1").isalnum()


def test_schemas_of_tools_are_in_the_guide() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    spec = Hermes(HermesConfig()).guide([Tool("f", "", schema, True)], required=True, parallel=True)
    assert json.loads(spec.text)["structures"][0]["schema"] == schema


@pytest.mark.parametrize(
    "strategy", [Hermes(HermesConfig()), Llama3(Llama3Config()), Mistral(MistralConfig())]
)
def test_an_answer_of_marks_costs_no_more_than_its_length(
    strategy: Hermes | Llama3 | Mistral,
) -> None:
    """Thousands of calls in each other, of which none ends well, take a moment."""
    answer = '<tool_call>{"k":[[TOOL_CALLS]<|python_tag|>{"k":[' * 2000 + "]}" * 4000 + "x"
    assert read(strategy.parser(TOOLS), [answer])
