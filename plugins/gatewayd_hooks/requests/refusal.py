"""Error response to a client."""

from __future__ import annotations


class RequestRefusal(Exception):
    """Error response, with a status other than 200.

    Attributes:
        status: HTTP status.
        message: a sentence for the client.
        type: OpenAI's error type, such as ``invalid_request_error``.
        code: specific error; stable and machine-readable.
        param: the invalid field, by its OpenAI name, or None.
        retry_after: seconds after which to retry, or None.
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
        """Return the refusal of a translated request with the field's name in the client's API."""
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


# Former name, supported until the major version of the contract is raised.
Refusal = RequestRefusal
