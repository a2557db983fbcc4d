"""References to models of the Hub: ``hf:ORG/NAME@REVISION:QUANTIZATION``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gatewayd.hub.errors import NO_REFERENCE, HubError

PREFIX: Final = "hf:"
DEFAULT_REVISION: Final = "main"

_ALIASES = (PREFIX, "https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/")
"""Beginnings under which other programs write names."""
_SHAPE = re.compile(r"(?P<repo>[^@:]+)(?:@(?P<revision>[^:]+))?(?::(?P<part>.+))?", re.DOTALL)
_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_WORD}/{_WORD}")
_LEVEL = r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}"
_REVISION = re.compile(rf"{_LEVEL}(?:/{_LEVEL}){{0,4}}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_PART = 200
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of the Hub.

    Attributes:
        repo: ``ORG/NAME``.
        revision: branch, tag or commit.
        part: quantization or file name, if the repository has several GGUF models; else empty.
    """

    repo: str
    revision: str = DEFAULT_REVISION
    part: str = ""

    def __str__(self) -> str:
        """The shortest form, without the prefix: ``ORG/NAME``, ``ORG/NAME@REVISION:PART``."""
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{revision}{self._suffix}"

    @property
    def served_name(self) -> str:
        """Default model name for clients: ``ORG/NAME``, or ``ORG/NAME:PART``."""
        return f"{self.repo}{self._suffix}"

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def _suffix(self) -> str:
        return f":{self.part}" if self.part else ""


def is_reference(path: str) -> bool:
    """Whether a configured path names a model of the Hub."""
    return path.startswith(PREFIX)


def parse_reference(text: str) -> HubReference:
    """Parse a reference; ``hf:`` and the Hub's addresses may precede it.

    Raises:
        HubError: it is none.
    """
    rest = text
    for prefix in _ALIASES:
        if text.startswith(prefix):
            rest = text.removeprefix(prefix)
            break
    shape = _SHAPE.fullmatch(rest) if len(rest) <= _LONGEST else None
    if shape is None or not _is_repo(shape["repo"]):
        raise _invalid(text)
    revision, part = shape["revision"] or DEFAULT_REVISION, shape["part"] or ""
    # `..` and `.lock` mean other things to git, and the revision becomes a file name.
    if not _REVISION.fullmatch(revision) or ".." in revision or revision.endswith((".", ".lock")):
        raise _invalid(text)
    if len(part) > _LONGEST_PART or not part.isprintable():
        raise _invalid(text)
    return HubReference(shape["repo"], revision, part)


def _is_repo(repo: str) -> bool:
    # `--` separates the two in the names of the store's folders.
    return _REPO.fullmatch(repo) is not None and "--" not in repo and ".." not in repo


def _invalid(text: str) -> HubError:
    shown = text if text.isprintable() and len(text) <= 200 else ascii(text[:200])
    return HubError(
        f"{shown!r} names no model of the Hub: write ORG/NAME, ORG/NAME@REVISION or"
        " ORG/NAME:QUANTIZATION, such as Qwen/Qwen3-0.6B-GGUF:Q8_0",
        NO_REFERENCE,
    )
