"""The settings of the server, with their defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes

from dedupindex.lookup.policy import NO_POLICY, Policy
from server.listeners import Tls


def default_workers() -> int:
    """Return one per core, at most four: a crawler rarely sends more than two can answer."""
    return max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Config:
    """The settings of a server. Sizes are bytes, times are seconds."""

    index: Path
    host: str = "127.0.0.1"
    port: int = 8484  # 0: any free one
    host_names: tuple[str, ...] = ()  # beside localhost, as `request_checks.host_name` returns them
    workers: int = field(default_factory=default_workers)
    private: bool = False  # whether lookups need a token
    guarded: bool = False  # whether nobody may write while there are no tokens
    tls: Tls | None = None
    access_log: bool = False
    log_format: str = "text"  # or "json"
    policy: Policy = NO_POLICY  # of all lookups, after that of their crawl
    max_body: int = 16 << 20  # of a JSON batch; reported JSON lines may be `LINES_BODIES` as long
    max_batch: int = 100_000  # lookups, captures or records in one JSON body
    max_line: int = 1 << 20  # of one JSON line
    body_timeout: int = 60  # in which each 64 KiB of a body, or its rest, must arrive
    rate_limit: int = 0  # requests a second of one client to one worker; 0: no limit
    dry_run_dirs: tuple[Path, ...] = ()  # below which the page of a dry run may read
    filter_memory: int = 0  # bytes of the filter of an index on a cluster; 0: it has none
    max_connections: int = 4096  # of one worker, idle ones included; more wait to be accepted
    stop_timeout: int = 30  # to finish requests when stopping
    secret: bytes = field(default_factory=lambda: token_bytes(32), repr=False)
    """Signs what pages have shown, in all workers, until the server is stopped."""


RECORDS_CRAWL = "doppelganger"  # the shared crawl of records posted to /api/records
MAX_QUERY = 60_000  # bytes of a query string; the HTTP layer below ends at 65,534
MAX_STREAMS = 96  # requests with a body at one time and worker: slow senders hold no more threads
LINES_BODIES = 64  # times `max_body` is the most that the JSON lines of one report may hold
MAX_SPOOLED = 4  # such bodies over `max_body` at one time and worker: each is a file on disk
THREADS = 128  # of one worker
HEADER_TIMEOUT = 30  # seconds in which the head of a request must arrive
BURST = 5  # seconds whose requests a client may send at once after a pause
CLIENTS = 10_000  # whose rates a worker keeps
RELOAD_EVERY = 0.25  # seconds between two checks of whether the index was replaced
GATHER_EVERY = 0.25  # seconds between two sums of the lookups of crawls
COUNT_EVERY = 1.0  # seconds between two writes of these sums
RELOAD_GRACE = 2.0  # seconds an index may be missing (it is being replaced) before it is an error
DRAIN = 0.3  # seconds in which answers ask clients to close, before the workers stop
RETRY_AFTER = 5  # seconds, in the header of every 503
