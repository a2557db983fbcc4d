"""Initial configuration: a file, a key, a folder for the store."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gatewayd.config.credentials import FOLDER, PREFIX

KEY = "api-key"
# Linux's ``sun_path`` has 108 bytes, one of them for the terminating zero.
_MOST_SOCKET = 107
"""Maximum length of a unix socket's path, in bytes."""


class InitError(Exception):
    """A file or folder cannot be created; the message has the reason."""


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """Paths of an initial configuration.

    Attributes:
        config: the configuration file.
        state: folder of the store.
        admin: path of the admin socket.
    """

    config: Path
    state: Path
    admin: Path

    @property
    def key(self) -> Path:
        """File of the API key."""
        return self.config.parent / FOLDER / KEY

    def text(self, model: Path | None, port: int) -> str:
        """Content of the configuration file."""
        path = "# path = unset: the embedded model" if model is None else f"path = {_toml(model)}"
        socket = f"socket = {_toml(self.admin)}"
        if len(str(self.admin)) > _MOST_SOCKET:
            socket = f"# {self.admin} would be too long a path for a socket"
        return f"""\
# Written by `gatewayd init`. `gatewayd config show` prints all keys and values; gatewayd.toml of
# share/gatewayd, or of etc/ in the project, explains them.

[server]
host = "127.0.0.1"
port = {port}
# The file {self.key}
api_key = "{PREFIX}{KEY}"

[model]
{path}

[store]
path = {_toml(self.state)}

[admin]
{socket}
"""

    def create(self, model: Path | None, port: int) -> list[str]:
        """Create missing files and folders; existing ones stay unchanged.

        Returns:
            A sentence for each.

        Raises:
            InitError: a file or folder cannot be created.
        """
        said = [_create_folder(self.state, 0o700), _create_folder(self.config.parent, 0o755)]
        said.append(_create_folder(self.key.parent, 0o700))
        # Readable by root alone is enough: systemd passes it to the service as a credential.
        said.append(_create_file(self.key, secrets.token_urlsafe(32) + "\n", 0o600))
        # Last: an interrupted run leaves no configuration that names a missing key.
        said.append(_create_file(self.config, self.text(model, port), 0o644))
        return said


def of_system(instance: str | None = None) -> FirstConfig:
    """Paths of ``gatewayd.service``, or of ``gatewayd@INSTANCE.service``."""
    name = "gatewayd" if instance is None else f"gatewayd-{instance}"
    return FirstConfig(
        Path("/etc/gatewayd", instance or "", "gatewayd.toml"),
        Path("/var/lib", name),
        Path("/run", name, "admin.sock"),
    )


def of_user(environ: Mapping[str, str]) -> FirstConfig:
    """Paths by the XDG conventions for a user's own daemon."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "gatewayd"
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "gatewayd"
    return FirstConfig(config / "gatewayd.toml", state, state / "admin.sock")


def _toml(path: Path) -> str:
    return '"' + str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _create_folder(path: Path, mode: int) -> str:
    if path.is_dir():
        return f"kept {path}"
    try:
        path.mkdir(parents=True)
        path.chmod(mode)  # regardless of the umask: the service's user must be able to read it
    except OSError as error:
        raise InitError(f"cannot create {path}: {error.strerror}") from error
    return f"made {path}"


def _create_file(path: Path, text: str, mode: int) -> str:
    try:
        # Created with its final mode, so that other users can never read it.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return f"kept {path}"
    except OSError as error:
        raise InitError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            # The umask may have removed permissions at creation.
            os.fchmod(fd, mode)
            stream.write(text)
    except OSError as error:
        # The next attempt would keep an incomplete file.
        path.unlink(missing_ok=True)
        raise InitError(f"cannot write {path}: {error.strerror}") from error
    return f"wrote {path}"
