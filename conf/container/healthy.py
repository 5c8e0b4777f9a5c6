"""Whether the server of a container is ready: ``python healthy.py 127.0.0.1:8484/readyz``.

Exit status 0 if it answers 200, by HTTP or, where it has a certificate, by HTTPS; else 1.
"""

from __future__ import annotations

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

_SECONDS = 2


def ready(host: str, path: str) -> bool:
    """Whether a path is answered 200. No proxy of the environment is asked."""
    context = ssl.create_default_context()
    # Nobody else listens on loopback here, and the certificate is made out to another name.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for connection in (
        HTTPConnection(host, timeout=_SECONDS),
        HTTPSConnection(host, timeout=_SECONDS, context=context),
    ):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):  # it may speak the other one
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    host, slash, path = sys.argv[1].partition("/")
    sys.exit(0 if ready(host, slash + path) else 1)
