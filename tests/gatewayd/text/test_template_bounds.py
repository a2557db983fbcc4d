"""Template bounds: jinja2 that explodes is refused; legitimate templates are not."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gatewayd.errors import InvalidRequest
from gatewayd.text import template_meter
from gatewayd.text.template import ChatTemplate

TWICE = "{% set ns = namespace(s=SEED) %}{% for i in range(40) %}{% set ns.s = AGAIN %}{% endfor %}"
LISTS = TWICE.replace("SEED", "['a']").replace("AGAIN", "[ns.s, ns.s]")
MESSAGES = [{"role": "user", "content": "hi <&> é"}, {"role": "assistant", "content": " x "}]
BLOWING = [
    "{{ 'a' * 100000000 }}",
    "{{ (100000000 * 'a') | length }}",
    "{{ ([0] * 100000000) | length }}",
    "{{ 'a'.ljust(100000000) }}",
    "{{ '1'.zfill(100000000) }}",
    "{{ 'a' | center(100000000) }}",
    "{{ 'a' | center(width=100000000) }}",
    "{{ ['a'] | map('center', 100000000) | list }}",
    "{{ '%99999999d' % 1 }}",
    "{{ '%*d' % (99999999, 1) }}",
    "{{ '%99999999d' | format(1) }}",
    "{{ '{:>99999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 99999999) }}",
    "{{ '{a:>99999999}'.format_map({'a': 1}) }}",
    "{{ ('a' * 9000).replace('a', 'b' * 9000) | length }}",
    "{{ ('a' * 9000) | replace('a', 'b' * 9000) | length }}",
    "{{ ['a' * 9000] * 9000 }}",
    "{{ (['a' * 9000] * 9000) | join }}",
    "{{ ''.join(['a' * 9000] * 9000) | length }}",
    TWICE.replace("SEED", "'aa'").replace("AGAIN", "ns.s ~ ns.s"),
    TWICE.replace("SEED", "'aa'").replace("AGAIN", "ns.s + ns.s"),
    TWICE.replace("SEED", "'aa'").replace(
        "{% set ns.s = AGAIN %}", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"
    ),
    LISTS + "{{ ns.s }}",
    LISTS + "{{ ns.s | tojson | length }}",
    LISTS + "{{ ns.s | string | length }}",
    LISTS + "{{ ('%s' % (ns.s,)) | length }}",
    LISTS + "{{ (ns.s ~ '') | length }}",
    TWICE.replace("SEED", "9").replace("AGAIN", "ns.s * ns.s"),
    "{{ 2 ** 100000000 }}",
    "{% for i in range(9000) %}" + "x" * 9000 + "{% endfor %}",
    "{% for i in range(99) %}{% for i in range(99) %}{% for i in range(99) %}"
    + "{% endfor %}" * 3,
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}" + "x" * 9000 + "{% endmacro %}{% for i in range(9000) %}"
    "{% if f() %}{% endif %}{% endfor %}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
    "{{ lipsum(n=100000) }}",
    "{% for i in range(9000) recursive %}{{ loop(range(9000)) if loop.depth0 < 1 }}{% endfor %}",
    "{{ ('{0}' * 9000).format('a' * 9000) | length }}",
    "{{ ('{a}' * 9000).format(a='a' * 9000) | length }}",
    "{{ (('%(a)s' * 9000) % {'a': 'a' * 9000}) | length }}",
    "{{ ('%(a)s' * 9000) | format(a='a' * 9000) | length }}",
    "{{ ['%(a)s' * 9000] | format(a='a' * 9000) | length }}",
    "{{ ('%9000d' * 9000) % ((1,) * 9000) }}",
    "{{ ('a' * 9000).join([''] * 9000) | length }}",
    "{{ range(9000) | join('a' * 9000) | length }}",
    "{{ [1] * 9000 | int }}{{ ([1] * 9000) | tojson(indent=9000) | length }}",
    "{{ ('\na' * 9000) | indent(9000) | length }}",
    "{{ ('\t' * 9000).expandtabs(9000) | length }}",
    "{{ ('\t' * 9000).expandtabs(tabsize=9000) | length }}",
    "{{ 12345 | replace('1', 'a' * 900000) | replace('2', 'a' * 900000) | length }}",
    "{{ ('a.com ' * 9000) | urlize(target='a' * 9000) | length }}",
    "{{ ([[1]] * 9000) | sum(start=[]) | length }}",
    TWICE.replace("SEED", "[1]").replace("AGAIN", "[ns.s, ns.s]") + "{{ ns.s == [] }}",
    TWICE.replace("SEED", "(1,)").replace("AGAIN", "(ns.s, ns.s)") + "{{ ns.s == () }}",
    TWICE.replace("SEED", "{}").replace("AGAIN", "{'a': ns.s, 'b': ns.s}"),
    TWICE.replace("SEED", "{}").replace("AGAIN", "dict(a=ns.s, b=ns.s)"),
    TWICE.replace("SEED", "[1]").replace("AGAIN", "(ns.s | batch(99) | list) * 2"),
    TWICE.replace("SEED", "[1]").replace("AGAIN", "(ns.s | map('list') | groupby(0) | list) * 2"),
    "{% macro f() %}{% set ns.s = varargs %}{% endmacro %}"
    + TWICE.replace("SEED", "[1]").replace("{% set ns.s = AGAIN %}", "{{ g(ns, ns.s) }}").replace(
        "g(ns, ns.s)", "f(ns.s, ns.s)"
    ),
]  # fmt: skip


@pytest.mark.parametrize("source", BLOWING, ids=range(len(BLOWING)))
def test_what_takes_too_much_is_refused_before_it_has_it(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_meter, "MOST_ITERATIONS", 20_000)
    monkeypatch.setattr(template_meter, "MOST_CHARS", 1 << 20)
    template = ChatTemplate(source)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="chat template does not accept") as refused:
            template.render(MESSAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.param == "messages"
    assert peak < 32 << 20


def test_a_million_turns_are_the_end_and_a_long_conversation_is_far_from_it() -> None:
    turns = "{% for i in range(1800) %}{% for j in range(1800) %}{% endfor %}{% endfor %}"
    with pytest.raises(InvalidRequest, match="makes more than 1,000,000 iterations"):
        ChatTemplate(turns).render(MESSAGES)
    many = [{"role": "user", "content": "x" * 200}] * 20_000
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render(many)) == 20_000 * 207


def test_what_takes_long_in_few_turns_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MOST_SECONDS", 0.2)
    sums = "{% set r = range(100000) %}{% for i in range(9000) %}{% set x = r | sum %}{% endfor %}"
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match=r"takes more than 0\.2 seconds"):
        ChatTemplate(sums).render(MESSAGES)
    assert time.thread_time() - began < 2


USUAL = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{% if not loop.last %}, {% endif %}"
    "{{ loop.previtem.role if loop.previtem else '-' }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content ~ '|' ~ loop.first }}{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k ~ '=' ~ v }};{% endfor %}",
    "{% macro show(m, end='.') %}{{ m.role + end }}{{ caller() if caller else '' }}{% endmacro %}"
    "{{ show(messages[0]) }}{% call show(messages[1], '!') %}<{{ 3 * 'x' }}>{% endcall %}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
    "{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = m.content %}"
    "{% endfor %}{{ ns.last.strip() ~ 'y' | upper ~ 1 ~ none }}",
    "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role',"
    " 'equalto', 'user') | list | length }} {{ '%s-%05.1f' | format('a', 2) }}",
    "{{ (messages | map(attribute='content') | map('upper') | list)[::-1] }}",
    "{{ 7 % 4 }} {{ 2 ** 5 }} {{ '%d%%' % 7 }} {{ [1] + [2] }} {{ [1] * 3 }} {{ 2.5 * 2 }}",
    "{% set text %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ text | length }}",
    "{{ 'a,b'.split(',') | last }} {{ ' '.join(['a', 'b']) }} {{ 'a' | indent(2, true) }}",
    "{{ ['x', messages[0].role] }} {{ {'a': messages[0].role, 'b': (1, 2)} | tojson(indent=2) }}"
    "{% set a, b = ('x', messages[1].role) %}{{ '%s %s' % (a, b) }} {{ dict(a=1, b=[a]) }}",
    "{% macro all() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ all(1, messages[0].role, b=2) }}",
    "{{ [1, 2, 3] | batch(2) | list }} {{ [1.5, 2] | map('int') | sum }}"
    " {{ messages | groupby('role') | length }} {{ ','.join(messages | map(attribute='role')) }}",
    "{{ '{:>5}'.format('a') }} {{ 'abc'.replace('b', 'xx') }} {{ 'abc' | replace('c', '') }}",
]  # fmt: skip


@pytest.mark.parametrize("source", USUAL, ids=range(len(USUAL)))
def test_all_else_is_what_jinja2_itself_makes_of_it(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    given: dict[str, Any] = {"messages": MESSAGES}
    assert ChatTemplate(source).render(MESSAGES) == plain.from_string(source).render(given)
