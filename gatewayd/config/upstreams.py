"""Tables of upstreams, ``[upstreams.NAME]``: servers to which requests are relayed."""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

UPSTREAM_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"

ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Url = Annotated[str, Field(max_length=1024)]
PhaseSeconds = Annotated[float, Field(gt=0, le=86_400)]


class UpstreamEntry(BaseModel):
    """One upstream: where it is, which models it serves, and the limits of its use."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    strategy: str = Field(default="openai", pattern=r"^[a-z0-9_]+$")
    url: Url | None = None
    urls: list[Url] = Field(default=[], max_length=64)
    api_key: SecretStr | None = Field(default=None, min_length=1)
    models: dict[ModelName, ModelName] = Field(min_length=1, max_length=1024)
    connect_seconds: PhaseSeconds = 5.0
    first_token_seconds: PhaseSeconds = 60.0
    between_tokens_seconds: PhaseSeconds = 30.0
    concurrency: int = Field(default=64, ge=1, le=65_536)
    max_waiting: int = Field(default=256, ge=0, le=65_536)
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    context_length: int | None = Field(default=None, ge=1, le=2**31 - 1)
    max_output_tokens: int = Field(default=8192, ge=1, le=2**31 - 1)
    settings: dict[str, Any] = {}

    @field_validator("url", "urls")
    @classmethod
    def _are_plain_urls(cls, value: str | list[str] | None) -> str | list[str] | None:
        for url in [value] if isinstance(value, str) else value or []:
            _check_url(url)
        return value

    @model_validator(mode="after")
    def _has_one_kind_of_url(self) -> Self:
        if (self.url is None) == (not self.urls):
            raise ValueError('give url = "http://..." or, for several endpoints, urls = [...]')
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError("urls has an endpoint twice")
        return self

    @property
    def endpoints(self) -> list[str]:
        """URLs of all endpoints, without a slash at the end."""
        return [url.rstrip("/") for url in ([self.url] if self.url else self.urls)]

    @property
    def secret(self) -> str:
        """The credential; empty for none."""
        return "" if self.api_key is None else self.api_key.get_secret_value()


def _check_url(url: str) -> None:
    """Check the URL of an endpoint.

    Raises:
        ValueError: it is no plain URL of HTTP.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"it is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be http://HOST... or https://HOST...")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a password; use api_key, which is never printed")
    if parts.query or parts.fragment or not url.isascii() or any(one.isspace() for one in url):
        raise ValueError("it must have no query, fragment or blank: paths are appended to it")
