"""Bearer tokens: who may write to a served index, or read it, and which crawls are theirs.

``INDEX/tokens.json`` holds a name, a role, patterns of crawls and namespaces, and the SHA-256 of
each token. A token is 32 random bytes, so its plain hash gives nothing away; the token itself is
shown once.
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
_BEGINNING = "dedup_"  # so that a token is known for one where it should not be


class Role(IntEnum):
    """What the holder of a token may do; each may do what those before it may."""

    READ = 1  # look up
    WRITE = 2  # begin crawls of its pattern, report, commit and cancel
    ADMIN = 3  # the same with any crawl


class Token(NamedTuple):
    """What is kept of a token."""

    name: str
    role: Role
    crawls: str  # pattern of crawls it may write to, as in a shell
    hash: str  # SHA-256, hex
    namespaces: str = "*"  # pattern of namespaces it may touch; "" is what is in none

    def may(self, role: Role, crawl: str, namespaces: Iterable[str] = ()) -> bool:
        """Whether the holder has a role in all `namespaces`, and with WRITE may touch a crawl."""
        if self.role is Role.ADMIN or self.role < role:
            return self.role >= role
        if not all(fnmatchcase(name, self.namespaces) for name in namespaces):
            return False
        return role < Role.WRITE or not crawl or fnmatchcase(crawl, self.crawls)


def read_tokens(index: Path) -> list[Token]:
    """The tokens of an index; raises `Damaged`, `IndexUnavailable`."""
    try:
        rows = json.loads((index / FILE).read_bytes())
        return [
            Token(
                *(row["name"], Role[row["role"]], row["crawls"], row["hash"]),
                row.get("namespaces", "*"),  # which came later
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
    """The token that `text` is; takes the same time for any text that is none."""
    digest, found = sha256(text.encode("utf-8", "surrogateescape")).hexdigest(), None
    for token in tokens:
        if compare_digest(token.hash, digest):
            found = token
    return found


def add(index: Path, name: str, role: Role, crawls: str = "*", namespaces: str = "*") -> str:
    """Make a token and return it; raises `BadInput`, `IndexExists` for a name that is taken."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"a token's name has letters, digits and . _ @ -, not {name[:64]!r}")
    with exclusive(index / "tokens.lock", f"the tokens of {index}"):
        tokens = read_tokens(index)
        if any(token.name == name for token in tokens):
            raise IndexExists(f"there is a token {name!r} already; remove it first")
        secret = _BEGINNING + secrets.token_urlsafe(32)
        made = Token(name, role, crawls, sha256(secret.encode()).hexdigest(), namespaces)
        _write(index, [*tokens, made])
    return secret


def remove(index: Path, name: str) -> None:
    """Take a token away; raises `BadInput` if there is none of this name."""
    with exclusive(index / "tokens.lock", f"the tokens of {index}"):
        tokens = read_tokens(index)
        left = [token for token in tokens if token.name != name]
        if len(left) == len(tokens):
            raise BadInput(f"there is no token {name[:64]!r}")
        _write(index, left)


def copy(index: Path, target: Path) -> None:
    """Copy the tokens of an index, if it has any: a copy without them would let everybody in."""
    if tokens := read_tokens(index):
        _write(target, tokens)


def _write(index: Path, tokens: list[Token]) -> None:
    rows = [{**token._asdict(), "role": token.role.name} for token in tokens]
    write_file(index / FILE, json.dumps(rows, indent=2).encode() + b"\n")
