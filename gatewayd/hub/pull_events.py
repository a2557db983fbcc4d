"""Progress of a pull, and its form as lines of JSON between processes."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal["listing", "fetching", "verifying", "done"]


class PullEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag="progress"):
    """Progress of a pull.

    Attributes:
        stage: of the pull, or of the file.
        file: that it is about; empty for all.
        digest: of the file.
        total: size of the file, in bytes.
        completed: bytes of it that are in the store.
    """

    stage: Stage
    file: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0


class PullFailure(msgspec.Struct, frozen=True, tag="failure"):
    """End of a pull that failed.

    Attributes:
        error: a sentence.
        code: see ``errors.STATUSES``.
    """

    error: str
    code: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[PullEvent | PullFailure] = msgspec.json.Decoder(
    PullEvent | PullFailure
)


def encode_line(event: PullEvent | PullFailure) -> str:
    """Return an event as JSON, without an end of line."""
    return _encoder.encode(event).decode()


def decode_line(line: bytes) -> PullEvent | PullFailure:
    """Parse a line.

    Raises:
        msgspec.DecodeError: it is none of ``encode_line``.
    """
    return _decoder.decode(line)
