"""How byte-level vocabularies split a text into words, by the kind that a GGUF file names.

Each kind is a chain of pre-tokenizers of the ``tokenizers`` library, as in the tokenizer.json of
the models that the kind is named after. Source: ``llama-vocab.cpp`` of llama.cpp lists the kinds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _SHORT = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASH}"
_CASED = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORT}|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORT}"
_GPT4O = rf"{_CASED}|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
_YOUTU = rf"{_CASED}|\p{{N}}|{_REST_WITH_SLASH}"
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+"
    "|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS = (  # of scripts with upper and lower case
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SEED = rf"{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)


class WordSplit(NamedTuple):
    """A kind of splitting, and what else its name stands for.

    Attributes:
        steps: of the library's pre-tokenizers, in order.
        ignores_merges: whether a word that is a token is taken whole.
        adds_bos: whether a text begins with BOS unless the file says otherwise.
    """

    steps: tuple[dict[str, Any], ...]
    ignores_merges: bool = False
    adds_bos: bool = False


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _bytes(*, splits: bool = False) -> dict[str, Any]:
    """Return the step from characters to bytes, which may split as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": splits,
    }


def _digits(*, single: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": single}


def _patterns(*patterns: str) -> tuple[dict[str, Any], ...]:
    return (*map(_split, patterns), _bytes())


_GPT2 = WordSplit((_bytes(splits=True),))
_STARCODER = WordSplit((_digits(single=True), _bytes(splits=True)))
_FALCON = (
    {"type": "Punctuation", "behavior": "Contiguous"},
    _bytes(splits=True),
    _digits(single=False),
    _split("[0-9][0-9][0-9]"),
)
_KINDS = {
    ("default",): WordSplit(
        (
            _split(r"[\p{P}\$\+<=>\^~\|]+"),
            _bytes(splits=True),
            _digits(single=False),
            _split("[0-9][0-9][0-9]"),
        )
    ),
    (
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        "lfm2",
    ): WordSplit(_patterns(_LLAMA3), ignores_merges=True, adds_bos=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): WordSplit(_patterns(_LLAMA3)),
    ("glm4",): WordSplit(_patterns(_LLAMA3), ignores_merges=True),
    (
        *("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "grok-2"),
        *("solar-open", "f2llmv2"),
    ): WordSplit(_patterns(_QWEN2)),
    ("qwen35",): WordSplit(_patterns(_QWEN35)),
    (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "mellum"),
        *("a.x-4.0", "exaone4", "gigachat", "roberta-bpe"),
    ): _GPT2,
    (
        *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        "mellum2",
    ): _STARCODER,
    ("falcon",): WordSplit(_FALCON),
    ("tekken",): WordSplit(_patterns(_TEKKEN), ignores_merges=True, adds_bos=True),
    ("gpt-4o", "llama4", "kanana2"): WordSplit(_patterns(_GPT4O)),
    ("deepseek-llm",): WordSplit(
        _patterns(
            "[\r\n]",
            rf"\s?[{_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _HAN,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): WordSplit(_patterns("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm"): WordSplit(
        _patterns(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)
    ),
    ("youtu",): WordSplit(_patterns(_YOUTU_SCRIPTS, _YOUTU), ignores_merges=True),
    ("bloom", "poro-chat", "gpt3-finnish"): WordSplit(_patterns(_BLOOM)),
    ("viking",): WordSplit(_patterns(_BLOOM, r"\p{N}")),
    ("bailingmoe", "bailingmoe2", "llada-moe"): WordSplit(_patterns(_BAILING)),
    ("seed-coder",): WordSplit(_patterns(_SEED)),
}
WORD_SPLITS = {name: split for names, split in _KINDS.items() for name in names}
"""By the value of ``tokenizer.ggml.pre``."""
