"""A plugin for warcprox 2.13: ask dedupindex before a record is written, report what was written.

    DEDUPINDEX_URL=http://127.0.0.1:8484 DEDUPINDEX_CRAWL=weekly conf/warcprox/plugin.sh -p 8000

`Lookup` stands first in warcprox's chain and sets what its WARC writer makes a revisit of; `Store`
is told after the record is written. Any failure means "store it": warcprox loses a capture whose
processor raises, so nothing here does.

Settings, all in the environment:

DEDUPINDEX_URL     where the server is (http://127.0.0.1:8484)
DEDUPINDEX_CRAWL   the crawl of requests without buckets; not set: they are looked up, not reported
DEDUPINDEX_TOKEN   a token of the role write, where the server wants one
DEDUPINDEX_COMMIT  1: commit the crawls when warcprox ends; otherwise somebody else does

A bucket of ``Warcprox-Meta: {"dedup-buckets": {"news": "rw", "base": "ro"}}`` is the namespace of
its name, asked in the order given. What is stored for ``rw`` is reported to a crawl in it, named
after DEDUPINDEX_CRAWL and the bucket (``weekly.news``; without the former after the bucket alone);
``ro`` is looked up and never reported to. What is in no namespace, the index first of all, answers
every bucket.

Where a policy of the server says ``skip``, the response is not written at all, as in warcprox's own
``--blackout-period``, which works too.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter

import warcprox
from warcprox.dedup import DedupableMixin

from dedupindex.client import SPELLED_OTHERWISE, Client, Hit
from dedupindex.errors import DedupError

_log = logging.getLogger("dedupindex")
_AT_ONCE = 500  # captures of one report
_GATHERED = 0.1  # seconds for which captures are gathered into one report
_ASK_AGAIN = 30  # seconds between two attempts to begin a crawl
_COVERS = {"covers": "entity"}  # a crawl says so when it begins; without one each lookup must


class Session:
    """What both plugins share: the client, and which crawls may be written to."""

    def __init__(self):
        self.client = Client(
            os.environ.get("DEDUPINDEX_URL") or "http://127.0.0.1:8484",
            token=os.environ.get("DEDUPINDEX_TOKEN", "").strip(),
            patience=5,
        )
        self.default = os.environ.get("DEDUPINDEX_CRAWL", "")
        self.commit = os.environ.get("DEDUPINDEX_COMMIT", "") not in ("", "0")
        self.counts = Counter()  # what this plugin left alone, by reason
        self._lock = threading.Lock()
        self._open = {}  # crawl: True once begun, or when to try again; False: it has ended
        self._told = set()
        if not self.default:
            self.tell("DEDUPINDEX_CRAWL is not set: without buckets nothing is reported")

    def tell(self, sentence):
        """Say something once."""
        with self._lock:
            new = sentence not in self._told and len(self._told) < 1000
            self._told.add(sentence) if new else None
        if new:
            _log.warning("%s", sentence)

    def places(self, recorded_url):
        """Where a capture is looked up, in order: parameters, and the crawl it is reported to."""
        buckets = (recorded_url.warcprox_meta or {}).get("dedup-buckets")
        if buckets is None:
            if self.default and self._may_write(self.default, {}):
                return [({"crawl": self.default}, self.default)]
            return [({**_COVERS}, None)]
        if not isinstance(buckets, dict):
            self.tell(f"dedup-buckets is no object of bucket names and modes: {buckets!r:.200}")
            return []
        found = []
        for name, mode in buckets.items():
            if not (name.isascii() and name.isprintable()) or set(name) & set(" /,") or not name:
                self.tell(f"bucket {name!r:.200} is ignored: it cannot be a namespace")
                self.counts["bucket ignored"] += 1
                continue
            crawl = f"{self.default}.{name}" if self.default else name
            if mode != "ro" and self._may_write(crawl, {"namespace": name}):
                found.append(({"crawl": crawl}, crawl))
            else:
                found.append(({"namespace": name, **_COVERS}, None))
        return found

    def _may_write(self, name, settings):
        """Whether a crawl takes captures; begins it at first."""
        with self._lock:
            state, now = self._open.get(name), time.monotonic()
            if isinstance(state, bool) or (state is not None and now < state):
                return state is not False  # while it cannot be begun, reports are kept
            self._open[name] = now + _ASK_AGAIN
        try:
            # warcprox takes digests of the body without its chunks
            self.client.begin(name, digest_covers="entity", **settings)
            done = True
        except DedupError as error:
            if error.http_status == 503:
                self.tell(f"crawl {name} is begun later: {error}")
                return True
            self.tell(f"crawl {name} is looked up but not reported to: {error}")
            done = False
        with self._lock:
            self._open[name] = done
        return done

    def begun(self):
        """The crawls that were begun, or shall be."""
        with self._lock:
            return [name for name, state in self._open.items() if state is not False]


_session = None
_making = threading.Lock()


def session():
    """The one session of this process."""
    global _session
    with _making:
        if _session is None:
            _session = Session()
        return _session


def spelled(recorded_url, options):
    """The payload digest as warcprox writes it."""
    return warcprox.digest_str(recorded_url.payload_digest, options.base32).decode("ascii")


class Lookup(warcprox.BaseStandardPostfetchProcessor, DedupableMixin):
    """Asks before the record is written."""

    CHAIN_POSITION = "early"

    def __init__(self, options=warcprox.Options(), controller=None):  # noqa: B008  (theirs)
        warcprox.BaseStandardPostfetchProcessor.__init__(self, options, controller)
        DedupableMixin.__init__(self, options)
        self.name = "dedupindex-lookup"
        self._session = session()

    def _process_url(self, recorded_url):
        try:
            self._look_up(recorded_url)
        except Exception:  # whatever it is, the response is stored
            _log.exception("a capture was not looked up")

    def _look_up(self, recorded_url):
        if (
            not getattr(recorded_url, "response_recorder", None)
            or not recorded_url.payload_digest
            or recorded_url.truncated
            or not self.should_dedup(recorded_url)
        ):
            return
        mine = spelled(recorded_url, self.options)
        mime = {"mime": recorded_url.mimetype} if recorded_url.mimetype else {}
        for place, _ in self._session.places(recorded_url):
            answer = self._session.client.lookup(mine, recorded_url.url, **place, **mime)
            if answer == SPELLED_OTHERWISE:
                self._session.tell(
                    f"originals spell their digests otherwise than warcprox does, as in {mine}: "
                    "replay would not find them, so such hits are not used; run it with --base32"
                )
            if isinstance(answer, Hit):
                recorded_url.dedup_info = _dedup_info(answer.original)
                if answer.skip:
                    recorded_url.do_not_archive = True
                    self._session.counts["skipped"] += 1
                return


def _dedup_info(original):
    info = {"url": original.url_bytes, "date": original.date.encode("ascii")}
    if original.record_id:
        info["id"] = b"<" + original.record_id.encode("latin-1") + b">"
    return info


class Store:
    """Reports responses that were written, many at once when many come."""

    def __init__(self, options=warcprox.Options(), controller=None):  # noqa: B008  (theirs)
        self.options = options
        self._session = session()
        self._queue = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="dedupindex-store", daemon=True)

    def start(self):
        """Called by warcprox when it starts."""
        self._thread.start()

    def notify(self, recorded_url, records):
        """Called by warcprox when records were written."""
        try:
            if records and records[0].type == b"response" and not recorded_url.truncated:
                for _, crawl in self._session.places(recorded_url):
                    if crawl:
                        self._queue.put((crawl, self._capture(recorded_url, records[0])))
        except Exception:  # it is in the WARC all the same, and can be indexed from there
            _log.exception("a capture was not reported")

    def _capture(self, recorded_url, record):
        return {
            "digest": spelled(recorded_url, self.options),
            "url": recorded_url.url,
            "date": record.date.decode("ascii"),
            "status": recorded_url.status,
            "mime": recorded_url.mimetype or "",
            "size": recorded_url.response_recorder.payload_size(),
            "record_id": record.id.decode("latin-1"),
            "container": record.warc_filename,
            "offset": record.offset,
        }

    def _run(self):
        ended = False
        while not ended:
            waiting = self._gathered()
            ended = None in waiting
            captures = {}
            for crawl, capture in filter(None, waiting):
                captures.setdefault(crawl, []).append(capture)
            for crawl, some in captures.items():
                try:
                    self._session.client.report(some, crawl=crawl)
                except Exception:  # nothing may end this thread before warcprox ends
                    _log.exception("%d captures were not reported", len(some))

    def _gathered(self):
        """Some captures; None among them is the end. A request for each would slow warcprox."""
        waiting = [self._queue.get()]
        end = time.monotonic() + _GATHERED
        while len(waiting) < _AT_ONCE and waiting[-1] is not None:
            try:
                waiting.append(self._queue.get(timeout=max(0, end - time.monotonic())))
            except queue.Empty:
                break
        return waiting

    def stop(self):
        """Called by warcprox when it ends and all records are written."""
        self._queue.put(None)
        self._thread.join()
        client = self._session.client
        if self._session.commit:
            for name in self._session.begun():
                try:
                    client.commit(name, "warcprox has ended")
                except DedupError as error:
                    _log.warning("crawl %s is not committed: %s", name, error)
        client.close()
        _log.warning("%s %s", client.counts.as_json(), dict(self._session.counts))
