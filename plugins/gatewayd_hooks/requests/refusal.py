"""What a client is told that gets no answer."""

from __future__ import annotations


class RequestRefusal(Exception):
    """An answer other than 200.

    Attributes:
        status: of the HTTP answer.
        message: a sentence for the client.
        type: OpenAI's family of the error, such as ``invalid_request_error``.
        code: what exactly went wrong; stable, for programs.
        param: the field at fault, in OpenAI's words, or None.
        retry_after: seconds after which to try again, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str = "invalid_value",
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def at(self, place: str) -> RequestRefusal:
        """The same of a field as the client calls it, whose request was translated."""
        message = self.message
        if self.param is not None and message.startswith(self.param):
            message = place + message[len(self.param) :]
        return RequestRefusal(
            *(self.status, message),
            type=self.type,
            code=self.code,
            param=place,
            retry_after=self.retry_after,
        )


# Its former name, kept until the major version of the contract rises.
Refusal = RequestRefusal
