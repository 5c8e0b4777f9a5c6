"""Bearer tokens: who may read a served index, and write to which of its crawls.

``INDEX/tokens.json`` holds the name, role, patterns of crawls and namespaces, and SHA-256 of each
token. A token has 32 random bytes, so its hash needs no salt. The token itself is printed once.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import BadInput, Damaged, IndexExists, IndexUnavailable
from dedupindex.runtime.files import exclusive, write_file

FILE = "tokens.json"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_PREFIX = "dedup_"  # so that secret scanners recognise a token


class Role(IntEnum):
    """What the holder of a token may do; each role includes those before it."""

    READ = 1  # look up
    WRITE = 2  # begin, report to, commit and cancel crawls that match its pattern
    ADMIN = 3  # the same for any crawl


class Token(NamedTuple):
    """What is stored of a token."""

    name: str
    role: Role
    crawls: str  # shell pattern of the crawls that it may write to
    hash: str  # SHA-256, hex
    namespaces: str = "*"  # shell pattern of the namespaces; "" is that of crawls without one

    def may(self, role: Role, crawl: str, namespaces: Iterable[str] = ()) -> bool:
        """Return whether the holder has a role in all `namespaces`, and may write to a crawl."""
        if self.role is Role.ADMIN or self.role < role:
            return self.role >= role
        if not all(fnmatchcase(name, self.namespaces) for name in namespaces):
            return False
        return role < Role.WRITE or not crawl or fnmatchcase(crawl, self.crawls)


def read_tokens(index: Path) -> list[Token]:
    """Return the tokens of an index; raises `Damaged`, `IndexUnavailable`."""
    try:
        rows = json.loads((index / FILE).read_bytes())
        return [
            Token(
                *(row["name"], Role[row["role"]], row["crawls"], row["hash"]),
                row.get("namespaces", "*"),  # older files have none
            )
            for row in rows
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise IndexUnavailable(f"{index / FILE} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{index / FILE} is damaged; remove it and make new tokens") from error


def holder(tokens: Sequence[Token], text: str) -> Token | None:
    """Return the token that `text` is; all other texts take the same time."""
    digest, found = sha256(text.encode("utf-8", "surrogateescape")).hexdigest(), None
    for token in tokens:
        if compare_digest(token.hash, digest):
            found = token
    return found


def add(index: Path, name: str, role: Role, crawls: str = "*", namespaces: str = "*") -> str:
    """Create a token and return its text; raises `BadInput`, `IndexExists` if its name is used."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"a token's name has letters, digits and . _ @ -, not {name[:64]!r}")
    with exclusive(index / "tokens.lock", f"the tokens of {index}"):
        tokens = read_tokens(index)
        if any(token.name == name for token in tokens):
            raise IndexExists(f"there is a token {name!r} already; remove it first")
        secret = _PREFIX + secrets.token_urlsafe(32)
        token = Token(name, role, crawls, sha256(secret.encode()).hexdigest(), namespaces)
        _write(index, [*tokens, token])
    return secret


def remove(index: Path, name: str) -> None:
    """Remove a token; raises `BadInput` if there is none of this name."""
    with exclusive(index / "tokens.lock", f"the tokens of {index}"):
        tokens = read_tokens(index)
        left = [token for token in tokens if token.name != name]
        if len(left) == len(tokens):
            raise BadInput(f"there is no token {name[:64]!r}")
        _write(index, left)


def copy(index: Path, target: Path) -> None:
    """Copy the tokens of an index, if it has any: without them everybody may write to the copy."""
    if tokens := read_tokens(index):
        _write(target, tokens)


def _write(index: Path, tokens: list[Token]) -> None:
    rows = [{**token._asdict(), "role": token.role.name} for token in tokens]
    write_file(index / FILE, json.dumps(rows, indent=2).encode() + b"\n")
