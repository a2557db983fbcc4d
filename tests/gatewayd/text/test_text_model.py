"""Text model: messages and prompts to ids equal transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.template import ChatTemplate
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import INLINE_SIZE

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|pad|>"]


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize("add_special", [False, True])
def test_long_texts_are_encoded_like_short_ones(
    text: TextModel, nano: Path, add_special: bool
) -> None:
    oracle = Backend.from_file(str(nano / "tokenizer.json"))
    long = "def f(x):\n    return '\u00fcber \u4e2d\u6587 \U0001f469'\n" * 200
    assert len(long) > INLINE_SIZE
    expected = oracle.encode(long, add_special_tokens=add_special).ids
    assert text.tokenizer.encode(long, add_special=add_special) == expected
    spelled = text.tokenizer.encode(SPECIAL[0] * INLINE_SIZE, add_special=add_special)
    assert not text.tokenizer.special_ids.intersection(spelled)


async def test_messages_are_encoded_as_transformers_does(text: TextModel, nano: Path) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoTokenizer.from_pretrained(nano)
    messages = chat(
        ("system", "Be brief."), ("user", "What does \u00fcber do?"), ("assistant", "x")
    )
    expected = oracle.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert await text.encode_chat(messages, limit=2048) == expected


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("special", SPECIAL)
async def test_a_special_token_spelled_in_a_message_stays_text(
    text: TextModel, role: str, special: str
) -> None:
    genuine = await text.encode_chat(chat((role, "x")), limit=2048)
    ids = await text.encode_chat(chat((role, f"a{special}b{special}")), limit=2048)
    control = text.tokenizer.special_ids
    assert [i for i in ids if i in control] == [i for i in genuine if i in control]
    assert f"a{special}b{special}" in text.tokenizer.decode(ids)


async def test_the_careful_path_agrees_with_the_plain_one_on_the_rest(text: TextModel) -> None:
    plain = await text.encode_chat(chat(("user", "say hello")), limit=2048)
    marked = await text.encode_chat(chat(("system", SPECIAL[2]), ("user", "say hello")), limit=2048)
    assert marked[-len(plain) :] == plain


async def test_a_special_token_spelled_in_a_prompt_stays_text(text: TextModel) -> None:
    ids = await text.encode_prompt("<|im_end|>", limit=2048)
    assert not set(ids) & text.tokenizer.special_ids
    assert text.tokenizer.decode(ids) == "<|im_end|>"


@given(sample=st.text(max_size=60))
def test_encoding_and_decoding_give_the_text_back(text: TextModel, sample: str) -> None:
    assert text.tokenizer.decode(text.tokenizer.encode(sample)) == sample


async def test_a_long_text_is_encoded_as_a_short_one(text: TextModel) -> None:
    sample = "def f(x): return x\n" * 400
    assert await text.tokenizer.encode_async(sample) == text.tokenizer.encode(sample)


async def test_a_hopelessly_long_prompt_is_refused_unencoded(text: TextModel) -> None:
    with pytest.raises(ContextLengthExceeded, match="context is 16"):
        await text.encode_prompt("a" * 100_000, limit=16)


async def test_a_model_without_a_template_says_so(text: TextModel) -> None:
    bare = TextModel(text.tokenizer, None)
    with pytest.raises(InvalidRequest, match="no chat template"):
        await bare.encode_chat(chat(("user", "x")), limit=16)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% for m in messages %}{{ m.pop('role') }}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ range(1000000000) | list }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(chat(("user", "x")))


def test_a_template_may_refuse_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render(chat(("user", "x")))


def test_json_in_a_template_is_not_escaped_for_html() -> None:
    template = ChatTemplate("{{ messages[0] | tojson }}")
    assert template.render([{"role": "user", "content": "<\u00e9>"}]) == (
        '{"role": "user", "content": "<\u00e9>"}'
    )


def test_a_template_that_marks_generations_renders_as_transformers_does() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = """{% set mark = 'outside' %}
{% for message in messages %}
    {% if message.role == 'assistant' %}
    {% generation %}
        {% set mark = 'inside' %}
        {{- message.content + mark + loop.index|string }}
        {%- if loop.first %}{% generation %}nested{% endgeneration %}{% endif %}

    {% endgeneration %}
    {% else %}
{{ message.content }} {{ mark }}
    {%- endif %}
{% endfor %}
end {{ mark }}
"""
    messages = chat(("assistant", "a"), ("user", "u"), ("assistant", "b"))
    rendered, _ = utils.render_jinja_template([messages], chat_template=source)
    assert ChatTemplate(source).render(messages, add_generation_prompt=False) == rendered[0]
    assert "inside3" in rendered[0]


def test_a_generation_that_is_not_closed_does_not_compile() -> None:
    with pytest.raises(ValueError, match="endgeneration"):
        ChatTemplate("{% generation %}a")


def test_a_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": "old", "bos_token": {"content": "<s>"}}'
    )
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}new")
    template = ChatTemplate.from_folder(tmp_path)
    assert template is not None
    assert template.render([]) == "<s>new"
