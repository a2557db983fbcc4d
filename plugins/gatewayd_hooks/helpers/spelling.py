"""Spelling of a vocabulary's tokens, from the decoder of a ``tokenizer.json``.

Served models use two kinds. In byte-level vocabularies (GPT-2's) each character stands for a byte.
In SentencePiece's, a marker stands for a space, ``<0x0A>`` for a byte, and a text's first space is
dropped. Both spell a token the same way in any position, so a table suffices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Spelling(NamedTuple):
    """Decoder that spells tokens independently of each other.

    Attributes:
        spell: returns the bytes of a token.
        num_stripped: spaces that are dropped at the beginning of a text.
    """

    spell: Callable[[str], bytes]
    num_stripped: int


def spelling_of(decoder: Mapping[str, Any]) -> Spelling | None:
    """Parse a decoder; None if the spelling of a token depends on adjacent tokens."""
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return Spelling(_byte_level, 0)
    replaced: list[tuple[str, str]] = []
    has_bytes = is_fused = False
    num_stripped = 0
    for step in steps:
        # Steps of other types, or in another order, may act on several tokens at once.
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not (
                has_bytes or is_fused
            ):
                replaced.append((old, new))
            case {"type": "ByteFallback"} if not is_fused:
                has_bytes = True
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0} if is_fused:
                num_stripped += start
            case _:
                return None

    def spell(token: str) -> bytes:
        for old, new in replaced:
            token = token.replace(old, new)
        byte = byte_of(token) if has_bytes else None
        return token.encode() if byte is None else byte

    return Spelling(spell, num_stripped)


def byte_of(token: str) -> bytes | None:
    """Return the byte that ``<0x0A>`` stands for; None for other tokens."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def has_byte_tokens(decoder: Mapping[str, Any]) -> bool:
    """Whether ``<0x0A>`` stands for a byte."""
    return any(step.get("type") == "ByteFallback" for step in decoder.get("decoders", [decoder]))


def _byte_alphabet() -> dict[str, int]:
    """Return the byte for each character of byte-level vocabularies.

    Printable bytes stand for themselves, the others for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()
"""Byte of each character of byte-level vocabularies."""


def _byte_level(token: str) -> bytes:
    """Return the bytes of a token.

    One with a character outside the alphabet (an added token) is plain text.
    """
    try:
        return bytes(BYTE_ALPHABET[char] for char in token)
    except KeyError:
        return token.encode()
