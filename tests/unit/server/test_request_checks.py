"""What the head of a request must say: Host, and the length of a body. Sent raw to `bin/serve`."""

from __future__ import annotations

import pytest

from dedupindex.errors import BadInput
from server.request_checks import host_name
from tests.attacks.test_cut_requests import send_bytes
from tests.conftest import MakeIndex
from tests.integration.test_server_live import PAGE, SHIPPED, question, serving
from tests.support.captures import capture
from tests.support.commands import typed

OURS = (
    "localhost", "localhost:8484", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.1:1",
    "127.8.0.9",
    "[::1]", "[::1]:8484", "192.0.2.7:80", "[2001:db8::1]", "[::ffff:127.0.0.1]", "localhost:",
)  # fmt: skip
NAMED = ("dedup.example.org", "Dedup.Example.ORG:8484", "dedup.example.org.", "other")
STRANGE = (
    "evil.example", "evil.example:8484", "localhost.evil.example", "evil-localhost",
    "sub.localhost",
    "127.0.0.1.evil.example", "127.1", "2130706433", "0x7f.0.0.1", "[::1", "::1", "[127.0.0.1]",
    "a@localhost", "localhost/", "localhost:x", "localhost:80:80", "http://localhost", "*", "-",
    "localhost evil", "l\xf6calhost", "%6cocalhost", "[::1]evil.example", "xn--lcalhost-90a", "_",
)  # fmt: skip
PATHS = (question(1), "/healthz", "/", "/crawls", "/cdx?url=x", "/none")


def get(path: str, *hosts: str, protocol: str = "HTTP/1.1") -> bytes:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    return f"GET {path} {protocol}\r\n{lines}Connection: close\r\n\r\n".encode("latin-1")


def test_only_known_host_names_are_answered(make_index: MakeIndex) -> None:
    """A web page whose name points to this machine is not let in (DNS rebinding)."""
    index = make_index([capture(1, PAGE)])
    options = ("--workers", "1", "--host-name", "Dedup.example.org", "--host-name", "other.")
    with serving(index, *options, command=SHIPPED) as server:
        for path in PATHS:
            for host in OURS + NAMED:
                assert send_bytes(server.port, get(path, host)) not in (0, 421), (path, host)
            for host in STRANGE:
                status = send_bytes(server.port, get(path, host))
                assert status in (400, 421), (path, host, status)
        begin = b"POST /crawls HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n"
        begin += b"Content-Type: application/json\r\nContent-Length: 12\r\n\r\n"
        assert send_bytes(server.port, begin + b'{"name":"a"}') == 421
        assert server.get("/crawls/a")[0] == 404
        status, said = server.get("/lookup", Host="evil.example")
        assert status == 421 and b"--host-name" in said and b'"wrong_host"' in said
        assert server.log.read_text().count("'evil.example' is no name of this server") == 1


def test_a_request_has_one_host(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "1", command=SHIPPED) as server:
        for path in PATHS:
            for hosts in ((), ("",), ("localhost", "localhost"), ("localhost", "evil.example")):
                assert send_bytes(server.port, get(path, *hosts)) == 400, (path, hosts)
            # It has no Host; who watches servers speaks it, and no browser does.
            assert send_bytes(server.port, get(path, protocol="HTTP/1.0")) not in (0, 400, 421), (
                path
            )
            assert send_bytes(server.port, get(path, "evil.example", protocol="HTTP/1.0")) == 421


def test_any_host_name_is_accepted_with_the_wildcard(make_index: MakeIndex) -> None:
    options = ("--workers", "1", "--host-name", "*")
    with serving(make_index([capture(1, PAGE)]), *options, command=SHIPPED) as server:
        assert send_bytes(server.port, get(question(1), "evil.example")) == 200
        assert send_bytes(server.port, get(question(1), "a", "b")) == 400


@pytest.mark.parametrize("name", ["http://a", "a:1", "a/b", "", "a b", "\u00e4", "a..b", "*.a"])
def test_invalid_host_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        host_name(name)


def test_the_command_refuses_an_invalid_host_name(make_index: MakeIndex) -> None:
    _, said = typed("serve", make_index([]), "--host-name", "http://a:1", status=4)
    assert "--host-name: 'http://a:1' is no name of a host" in said
