"""TLS by Granian; the files are checked first, for clear error messages."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from granian.constants import SSLProtocols

from dedupindex.errors import BadInput

_PKCS8 = b"-----BEGIN PRIVATE KEY-----"


class Tls(NamedTuple):
    """A certificate and its key. Workers read the files when they start."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Raise `BadInput` for files that cannot be used."""
        _read(self.cert)
        if _PKCS8 not in _read(self.key):  # the only form that Granian reads
            raise BadInput(
                f"{self.key} is no PKCS#8 key without a password: "
                "openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise BadInput(f"{self.cert} and {self.key} do not serve: {reason}") from error

    def options(self) -> dict[str, Any]:
        """Return the options of Granian; its TLS 1.2 has no weak ciphers."""
        return {
            "ssl_cert": self.cert,
            "ssl_key": self.key,
            "ssl_protocol_min": SSLProtocols.tls12,
        }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
