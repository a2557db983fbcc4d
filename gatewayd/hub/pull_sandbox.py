"""Confinement of a pull, which reads what other machines send: it writes the store alone.

It reads the installation, the store, what connections need (names, certificates) and the Hub's
token. Where the system lacks Landlock or seccomp, it runs with the other one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

from gatewayd.hub.errors import NOT_CONFINED, HubError
from gatewayd.hub.store import expanded, hub_home, repo_folder, store_folder
from gatewayd_engine.process.sandbox import (
    SandboxFailed,
    SandboxUnavailable,
    confine,
    has_content_name,
    installation,
)

_CONNECTIONS = (
    *("/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"),
    # The file, and the folders where it is replaced while a network changes.
    *("/etc/resolv.conf", "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf"),
    # Not the whole folders: theirs for private keys can be read by a pull of root.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    *("/etc/pki/ca-trust", "/etc/crypto-policies", "/etc/mime.types"),
)


def confine_pull(repo: str) -> str:
    """Confine this process to what a pull from a repository needs, irrevocably.

    Returns:
        Mechanisms that the system lacks; empty if none.

    Raises:
        HubError: the system supports a mechanism, but applying it failed.
        OSError: the store cannot be created.
    """
    store_folder().mkdir(parents=True, exist_ok=True)
    readable = [*installation(), *_CONNECTIONS, *_certificates(), *_tokens()]
    try:
        confine(
            [*readable, *_linked_contents(repo)],
            # Folders in it may not be links to others: an earlier pull may have made these.
            writable=[str(store_folder())],
            has_network=True,
        )
    except SandboxUnavailable as error:
        return str(error)
    except SandboxFailed as error:
        raise HubError(
            f"the pull could not be confined: {error}; `gatewayd doctor` tries it", NOT_CONFINED
        ) from error
    return ""


def _certificates() -> Iterator[str]:
    paths = ssl.get_default_verify_paths()
    yield from filter(None, (paths.cafile, paths.capath))
    yield os.environ.get("SSL_CERT_FILE", "")
    yield from os.environ.get("SSL_CERT_DIR", "").split(os.pathsep)


def _tokens() -> Iterator[str]:
    home = hub_home()
    for variable, name in (
        ("HF_TOKEN_PATH", "token"),
        ("HF_STORED_TOKENS_PATH", "stored_tokens"),
    ):
        yield str(expanded(os.environ.get(variable) or str(home / name)))


def _linked_contents(repo: str) -> Iterator[str]:
    """Yield the contents to which links of a repository lead: other tools store them elsewhere."""
    for kind in ("blobs", "snapshots"):
        for path in (repo_folder(repo) / kind).rglob("*"):
            target = os.path.realpath(path)
            # A folder would allow everything in it, whatever it is named.
            if path.is_symlink() and has_content_name(target) and os.path.isfile(target):
                yield target
