"""Errors of programs.

LangError
├── ServerError    the server refused, failed or was unreachable
├── GenError       the same for one ``gen``, or its answer is unusable; names the ``gen``
└── TemplateError  the model's chat template cannot be continued
"""

from __future__ import annotations


class LangError(Exception):
    """Base of all errors."""


class ServerError(LangError):
    """Raised when the server refused, failed or was unreachable.

    Attributes:
        message: one sentence, the server's own if it sent one.
        status: of the answer; None without one.
        code: the server's error code, ``connection`` or ``timeout``.
        param: the invalid field of the request, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class GenError(LangError):
    """Raised when a ``gen`` has no answer, or an unusable one.

    Attributes:
        name: of the ``gen``.
        message: why, without the name.
        text: what was generated nevertheless.
        status, code, param: of the server's error, if that is the reason.
    """

    def __init__(
        self, name: str, message: str, *, text: str = "", cause: ServerError | None = None
    ) -> None:
        super().__init__(f"gen {name!r}: {message}")
        self.name = name
        self.message = message
        self.text = text
        self.status = cause.status if cause else None
        self.code = cause.code if cause else None
        self.param = cause.param if cause else None


class TemplateError(LangError):
    """Raised when a turn cannot be continued with the model's chat template."""
