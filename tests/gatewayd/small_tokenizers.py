"""Small tokenizers of the kinds that checkpoints come with."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gatewayd.text.tokenizer import Tokenizer

WORDS = ["\u2581hello", "\u2581world", "\u2581", "\u2581\u2581", "h", "i", "!", "\u00e9"]
FIRST_BYTE = 3 + len(WORDS)


def sentencepiece(*, strips: bool = True, added: tuple[AddedToken, ...] = ()) -> Tokenizer:
    """As Llama 2's; with ``strips`` false as Gemma's."""
    tokens = ["<unk>", "<s>", "</s>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["l", "o", "he", "ll", "hell", "hello", "w", "r", "d", "\u2581h", "\u2581w"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u2581", "hello")]
    tokens += ["e"]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("\u2581")] if strips else []), normalizers.Replace(" ", "\u2581")]
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    special = [AddedToken(token, special=True, normalized=False) for token in tokens[:3]]
    backend.add_special_tokens([*special, *added])
    return Tokenizer(backend.to_str())


def metaspace() -> Tokenizer:
    """Whose first token loses its spaces, but no other: the neighbours matter."""
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend.to_str())


def wordpiece() -> Tokenizer:
    """As BERT's: a space before each word that goes on."""
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "hello",
        "world",
        "##s",
        "##ing",
        "!",
        "do",
        "not",
        "\u00e9",
    ]
    backend = Backend(models.WordPiece({word: i for i, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(words[:3])
    return Tokenizer(backend.to_str())
