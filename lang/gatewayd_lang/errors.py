"""What can go wrong with a program.

LangError
├── ServerError    the server refused, broke off or was not there
├── GenError       the same of one ``gen``, or its answer is of no use; names the ``gen``
└── TemplateError  the model's chat template cannot be continued
"""

from __future__ import annotations


class LangError(Exception):
    """Any of them."""


class ServerError(LangError):
    """The server refused, broke off or was not there.

    Attributes:
        message: one sentence, the server's own where it sent one.
        status: of the answer; None without one.
        code: the server's word for it, ``connection`` or ``timeout``.
        param: the field of the request that is at fault, if one is.
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
    """A ``gen`` has no answer, or one that is of no use.

    Attributes:
        name: of the ``gen``.
        message: why, without the name.
        text: what was generated nevertheless.
        status, code, param: of the server's error, where that is the reason.
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
    """The model's chat template shows a turn in no way that can be continued."""
