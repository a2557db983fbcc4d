"""Validates the input of a batch before any line is run, incrementally. Blocks.

Every line counts against the maximum of lines, empty ones included; nothing beyond it is read.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gatewayd.resources.batches.lines import InvalidLine, request_of

MAX_ERRORS = 100

_SKIP_BYTES = 1 << 20
_WORK_SECONDS, _REST_SECONDS = 0.001, 0.0002
"""Yields the interpreter lock often, or the event loop would wait up to 5 ms for it each time."""


class LineError(NamedTuple):
    """Error of a line, or of the whole file; OpenAI's batch error."""

    code: str
    line: int | None
    message: str
    param: str | None

    def shown(self) -> dict[str, Any]:
        """Build the JSON object."""
        return self._asdict()


class ValidationResult(NamedTuple):
    """The result of a validation.

    Attributes:
        total: number of requests.
        model: model of the first request.
        errors: at most ``MAX_ERRORS``; with any, no line is run.
    """

    total: int
    model: str | None
    errors: list[LineError]


class InputValidation:
    """A validation in progress.

    Args:
        path: path of the content.
        endpoint: endpoint that every line must name.
        most_lines: maximum of lines, empty ones included.
        line_bytes: maximum length of a line.
    """

    def __init__(self, path: Path, endpoint: str, *, most_lines: int, line_bytes: int) -> None:
        self._path = path
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._line_bytes = line_bytes
        self._errors: list[LineError] = []
        # By digest: fifty thousand names of 512 characters are up to 100 MB.
        self._seen: dict[bytes, int] = {}
        self._offset = self._number = self._total = 0
        self._model: str | None = None
        self._is_skipping = False

    def step(self, seconds: float) -> ValidationResult | None:
        """Validate for about this many seconds, at least one line.

        Returns:
            The result; None if the input has more lines.

        Raises:
            OSError: the input cannot be read.
        """
        began = time.monotonic()
        end, rest_at = began + seconds, began + _WORK_SECONDS
        with self._path.open("rb") as file:
            file.seek(self._offset)
            # The time is checked after a line, so that each step makes progress.
            while self._next(file):
                now = time.monotonic()
                if now >= end:
                    self._offset = file.tell()
                    return None
                if now >= rest_at:
                    time.sleep(_REST_SECONDS)
                    rest_at = time.monotonic() + _WORK_SECONDS
        if not self._total:
            self._errors.append(LineError("empty_file", None, "the file has no requests", None))
        return ValidationResult(self._total, self._model, self._errors)

    def _next(self, file: BinaryIO) -> bool:
        """Validate a line, or skip a piece of an overlong one; return whether to continue."""
        if self._is_skipping:
            rest = file.readline(_SKIP_BYTES)
            # The rest of an overlong line is read in pieces, and kept nowhere.
            self._is_skipping = bool(rest) and not rest.endswith(b"\n")
            return bool(rest)
        # One byte more tells a line of the maximum length from a longer one.
        text = file.readline(self._line_bytes + 1)
        if not text:
            return False
        self._number += 1
        # Counted by lines, or a file of line ends would be read to its end.
        if self._number > self._most_lines:
            message = (
                f"the file has more lines than the maximum of {self._most_lines}, empty ones "
                "included; send it in parts"
            )
            self._errors.append(LineError("too_many_requests", None, message, None))
            # So that it is not reported as empty as well, if all lines before were.
            self._total += 1
            return False
        if len(text) > self._line_bytes and not text.endswith(b"\n"):
            self._is_skipping = True
            self._total += 1
            message = (
                f"the line is longer than {self._line_bytes} bytes, the maximum of a request body"
            )
            return self._add_error(LineError("line_too_long", self._number, message, None))
        if not text.strip():
            return True
        self._total += 1
        return self._validate_line(text)

    def _validate_line(self, text: bytes) -> bool:
        try:
            request = request_of(text, self._endpoint)
            custom_id = request.custom_id.encode(errors="surrogatepass")
            # 16 bytes: an accidental collision among these lines is out of the question.
            digest = hashlib.blake2b(custom_id, digest_size=16).digest()
            if (first := self._seen.setdefault(digest, self._number)) != self._number:
                raise InvalidLine(
                    "duplicate_custom_id",
                    f"custom_id {request.custom_id[:64]!r} is that of line {first} already",
                    "custom_id",
                )
        except InvalidLine as refused:
            return self._add_error(
                LineError(refused.code, self._number, refused.message, refused.param)
            )
        self._model = self._model or request.model
        return True

    def _add_error(self, error: LineError) -> bool:
        self._errors.append(error)
        return len(self._errors) < MAX_ERRORS
