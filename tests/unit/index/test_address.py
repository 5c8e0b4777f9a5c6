"""Addresses of clusters: parsed, written and refused."""

from __future__ import annotations

import pytest

from dedupindex.errors import BadInput
from dedupindex.index.address import Address


@pytest.mark.parametrize(
    "text",
    [
        "cassandra://one/keyspace",
        "cassandra://one,two/keyspace?consistency=QUORUM&timeout=2.5",
        "cassandra://one:9043,two:9043/keyspace?replication=dc1:3,dc2:2",
        "cassandra://[::1]/keyspace",
        "cassandra://[2001:db8::1]:9043,[2001:db8::2]:9043/keyspace",
    ],
)
def test_a_written_address_is_read_back(text: str) -> None:
    """An index stores the text of its address."""
    address = Address.parse(text)
    assert str(address) == text
    assert Address.parse(str(address)) == address


def test_hosts_are_those_that_the_driver_connects_to() -> None:
    assert Address.parse("cassandra://[::1]:9043,one:9043/keyspace").hosts == ("::1", "one")


@pytest.mark.parametrize(
    "text",
    [
        "cassandra://[::1/keyspace",
        "cassandra://::1]/keyspace",
        "cassandra://h\N{ACCOUNT OF}x/keyspace",
        "cassandra://one,/keyspace",
        "cassandra://one:0/keyspace",
        "cassandra://one:9042,two:9043/keyspace",
        "cassandra://one/Keyspace",
        "cassandra://one/keyspace?consistency",
        "cassandra://one/keyspace?consistency=most",
        "cassandra://one/keyspace?timeout=nan",
        "cassandra://user:secret@one/keyspace",
        "cassandra://user:secret@h\N{ACCOUNT OF}x/keyspace",
    ],
)
def test_a_wrong_address_is_bad_input_without_its_password(text: str) -> None:
    with pytest.raises(BadInput) as error:
        Address.parse(text)
    assert "secret" not in str(error.value)
