"""TLS for connections between hosts, if HVD_TLS_CERT, _KEY and _CA are set.

Both sides show a certificate of the authority in HVD_TLS_CA. Names in them do
not count: the secret of the job says who belongs to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError

if TYPE_CHECKING:
    import ssl


def context(config: Config, *, is_server: bool) -> ssl.SSLContext | None:
    """Returns what the settings ask for; None: no TLS.

    Raises:
        ConfigError: One of the three is missing, or a file is unusable.
    """
    names = ("HVD_TLS_CERT", "HVD_TLS_KEY", "HVD_TLS_CA")
    values = (config.tls_cert, config.tls_key, config.tls_ca)
    missing = [n for n, v in zip(names, values, strict=True) if v is None]
    if len(missing) == len(names):
        return None
    if missing:
        raise ConfigError(
            f"All of {', '.join(names)} must be set, or none. Received: no "
            f"{', '.join(missing)}."
        )
    import ssl  # it takes a while to load, and most jobs need none

    purpose = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    made = ssl.SSLContext(purpose)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_cert_chain(config.tls_cert or "", config.tls_key)
        made.load_verify_locations(config.tls_ca)
    except OSError as error:
        raise ConfigError(
            "`HVD_TLS_CERT`, `HVD_TLS_KEY` and `HVD_TLS_CA` must be PEM files "
            f"of a certificate, its key and its authority. Received: {error}."
        ) from None
    return made
