"""TLS to a real node, which takes nothing else and asks who we are."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dedupindex.errors import BadInput, IndexUnavailable
from dedupindex.index.address import AUTHORITY, CERTIFICATE, KEY, Address
from dedupindex.index.engines.cassandra.cql import Statement, connect, tls_context
from tests.integration.test_operation import certificate
from tests.peers.cassandra import PATIENCE, Ring, ring

pytestmark = pytest.mark.peer

_SETTINGS = """
client_encryption_options:
  enabled: true
  optional: false
  require_client_auth: true
  ssl_context_factory: {{class_name: org.apache.cassandra.security.PEMBasedSslContextFactory}}
  keystore: {node}
  truststore: {client}
"""
_RELEASE = Statement("SELECT release_version FROM system.local")
BELIEVED = ("node", "authority")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the environment names: of the node's certificate, and of ours."""
    folder = tmp_path_factory.mktemp("tls")
    node, node_key = certificate(folder, "node")
    client, client_key = certificate(folder, "client")
    (folder / "keystore.pem").write_bytes(node_key.read_bytes() + node.read_bytes())
    return {AUTHORITY: str(node), CERTIFICATE: str(client), KEY: str(client_key)}


@pytest.fixture(scope="module")
def encrypted(files: dict[str, str]) -> Iterator[Ring]:
    keystore = Path(files[AUTHORITY]).with_name("keystore.pem")
    settings = _SETTINGS.format(node=keystore, client=files[CERTIFICATE])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in files.items():
            patch.setenv(name, value)
        with ring(1, settings, tls="node", timeout=PATIENCE) as found:
            yield found


@pytest.mark.parametrize("tls", BELIEVED)
def test_a_node_that_asks_for_tls_answers(encrypted: Ring, tls: str) -> None:
    address = Address.parse(encrypted.address(tls=tls))
    with closing(connect(address)) as session:
        assert session.execute(_RELEASE)[0][0].startswith("5.")


@pytest.mark.parametrize("tls", BELIEVED)
def test_untrusted_certificates_are_refused(
    encrypted: Ring, files: dict[str, str], tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUTHORITY, files[CERTIFICATE])
    address = Address.parse(encrypted.address(tls=tls, timeout=2))
    with pytest.raises(IndexUnavailable, match="no node of 127.0.0.1 answers"):
        connect(address)


def test_a_certificate_of_another_node_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its authority is ours: who has it could pass for any node."""
    cert, key = certificate(tmp_path, "other", host="127.0.0.9")
    monkeypatch.setenv(AUTHORITY, str(cert))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_shake_hands, args=(listener, cert, key), daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(IndexUnavailable, match="IP address mismatch"):
            connect(Address.parse(f"cassandra://127.0.0.1:{port}/k?tls=node&timeout=20"))
    for tls in BELIEVED:
        context = tls_context(Address.parse(f"cassandra://a/k?tls={tls}"), {AUTHORITY: str(cert)})
        assert context is not None and context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname == (tls == "node")


def _shake_hands(listener: socket.socket, cert: Path, key: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(cert, key)
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            with suppress(OSError), closing(served.wrap_socket(client, server_side=True)):
                pass


def test_tls_settings_with_an_unencrypted_address_are_refused(files: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="unencrypted"):
        tls_context(Address.parse("cassandra://a/k"), files)
    assert tls_context(Address.parse("cassandra://a/k"), {}) is None
    assert str(Address.parse("cassandra://a/k?tls=node")).endswith("?tls=node")


@pytest.mark.parametrize("name", [AUTHORITY, CERTIFICATE])
def test_files_that_cannot_be_used_are_named(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for known, value in files.items():
        monkeypatch.setenv(known, value)
    monkeypatch.setenv(name, str(tmp_path / "away.pem"))
    address = Address.parse("cassandra://127.0.0.1:1/k?tls=authority")
    with pytest.raises(BadInput, match=f"away.pem.*{name}"):
        connect(address)
