"""The secret of the job: who knows it belongs to the job."""

from __future__ import annotations

import os
import stat

from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError, LaunchError

_NUM_BYTES = 32
_CURE = (
    "Make one with `(umask 077; openssl rand -hex 32 > FILE)`, copy FILE to "
    "all hosts and set HVD_SECRET_FILE=FILE there."
)


def find(config: Config) -> bytes | None:
    """Returns the secret that the settings give; None if they give none.

    Raises:
        ConfigError: It is malformed, or others may read its file.
    """
    if config.secret is not None:
        return parse_secret(config.secret)
    if config.secret_file is not None:
        return _read(config.secret_file)
    return None


def require(config: Config) -> bytes:
    """Returns the secret that the settings give.

    Raises:
        LaunchError: They give none.
    """
    found = find(config)
    if found is None:
        raise LaunchError(
            "Processes on several hosts must share a secret: HVD_SECRET_FILE "
            f"or HVD_SECRET. Received: none. {_CURE}"
        )
    return found


def parse_secret(text: str | None, name: str = "HVD_SECRET") -> bytes:
    """Returns the bytes of HVD_SECRET, or of what `name` says."""
    try:
        secret = bytes.fromhex(text or "")
    except ValueError:
        secret = b""
    if len(secret) != _NUM_BYTES:
        raise ConfigError(
            f"`{name}` must be 64 hexadecimal digits if HVD_RENDEZVOUS is "
            "set; hvdrun sets both. Received: "
            f"{len(text or '')} characters (hidden)."
        )
    return secret


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(1 << 12)
    except OSError as error:
        raise ConfigError(
            "`HVD_SECRET_FILE` must be a file that can be read. Received: "
            f"{path!r}: {error.strerror}."
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & 0o77:
        raise ConfigError(
            f"`HVD_SECRET_FILE` must belong to user {os.geteuid()} and be "
            f"closed to others. Received: {path!r} of user {found.st_uid} "
            f"with mode {mode:04o}. Cure: chmod 600 {path}"
        )
    shown = text.decode("ascii", "replace").strip()
    return parse_secret(shown, "HVD_SECRET_FILE")
