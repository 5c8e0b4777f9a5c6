"""TLS to the nodes of a cluster, as the address and the environment have it.

An address that says ``tls`` never speaks without; which files to use is of each machine, and so is
told by its environment.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import NamedTuple

from dedupindex.errors import BadInput
from dedupindex.index.address import AUTHORITY, CERTIFICATE, KEY, NODE, SCHEME, Address


class Trust(NamedTuple):
    """Who is believed, and who we are; file names, empty where there is none."""

    authority: str  # PEM: who signs the certificates of nodes; the system's where it is empty
    certificate: str  # PEM: our own
    key: str
    names: bool  # whether a certificate has to name the address of its node


def trust(address: Address, environment: Mapping[str, str]) -> Trust | None:
    """What the address and the environment ask for: nothing, if the address says no ``tls``.

    Raises `BadInput` if the environment has files that would not be used.
    """
    authority, certificate, key = (
        environment.get(name, "") for name in (AUTHORITY, CERTIFICATE, KEY)
    )
    if not address.tls:
        for name, value in ((AUTHORITY, authority), (CERTIFICATE, certificate)):
            if value:
                raise BadInput(
                    f"{name} is set, but the address has no tls, so all would go unencrypted: "
                    f"write {SCHEME}…/{address.keyspace}?tls={NODE}, or unset it"
                )
        return None
    return Trust(authority, certificate, key, address.tls == NODE)


def context(asked: Trust) -> ssl.SSLContext:
    """What the driver connects with. Raises `BadInput` for files that cannot be used."""
    try:
        found = ssl.create_default_context(cafile=asked.authority or None)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(AUTHORITY, asked.authority, error) from error
    found.check_hostname = asked.names
    if asked.certificate:
        try:
            found.load_cert_chain(asked.certificate, asked.key or None)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(CERTIFICATE, asked.certificate, error) from error
    return found


def _unusable(name: str, path: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"{path or 'no file'} ({name}): {reason}; it must be a PEM file")
