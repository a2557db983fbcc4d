"""Byte-level BPE tokenizer, trained on the corpus."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from gatewayd_engine.offline.train.chats import CALL_END, CALL_START, END, START
from gatewayd_engine.offline.train.corpus import Corpus

END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, START, END, CALL_START, CALL_END, PAD)
"""Special tokens in the order of their ids, from 0."""
END_OF_TEXT_ID, END_ID, PAD_ID = (SPECIAL_TOKENS.index(t) for t in (END_OF_TEXT, END, PAD))

VOCAB_SIZE = 4096
CHAT_SHARE = 8
"""One chat in this many is used, because chats repeat the vocabulary of the code."""

# Contractions; words with a leading character; numbers of up to three digits; punctuation with
# trailing newlines; newlines; spaces. Numbers are split, so that no long one becomes a token.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def train_tokenizer(corpus: Corpus, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train a tokenizer; ``vocab_size`` includes special tokens and the 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus), trainer)
    return tokenizer


def _texts(corpus: Corpus) -> Iterator[str]:
    yield from corpus.code
    for chat in corpus.chats[::CHAT_SHARE]:
        # Markers are special tokens, which must not become parts of merges.
        yield chat.replace(START, "").replace(END, "")
