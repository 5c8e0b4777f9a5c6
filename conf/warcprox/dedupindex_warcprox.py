"""A plugin for warcprox 2.13: ask dedupindex before a record is written, report what was written.

    DEDUPINDEX_URL=http://127.0.0.1:8484 DEDUPINDEX_CRAWL=weekly conf/warcprox/plugin.sh -p 8000

`Lookup` stands first in warcprox's chain of processors, and sets what its WARC writer makes a
revisit of. `Store` reports what was written. warcprox calls it up to a minute after that, because
StatsProcessor before it gathers captures for so long; so `Lookup` keeps what it passes on, and it
is reported as soon as the writer has noted its records. When a payload comes again in between,
`Lookup` first lets its capture be written and reported, and then asks: the server alone decides
what is an original, and names only records that exist.

Only responses to GET are looked up and reported, and of these only what the index takes (its rules
on status, media type and size are read from the server). Any failure means "store it": warcprox
loses a capture whose processor raises, so nothing here does.

Settings, all in the environment:

DEDUPINDEX_URL     where the server is (http://127.0.0.1:8484)
DEDUPINDEX_CRAWL   the crawl of requests without buckets; not set: they are looked up, not reported
DEDUPINDEX_TOKEN   a token of the role write, where the server wants one
DEDUPINDEX_FILTER  seconds between two renewals of the digest filter; not set: all is asked
DEDUPINDEX_COMMIT  yes or 1: commit the crawls when warcprox ends; no, 0 or not set: do it yourself

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
import re
import threading
import time
from collections import Counter

import warcprox
from warcprox.dedup import DedupableMixin

from dedupindex.client import SPELLED_OTHERWISE, Client, DigestFilter, Hit
from dedupindex.errors import DedupError, IndexUnavailable

_log = logging.getLogger("dedupindex")
_GATHERED = 0.1  # seconds for which captures are gathered into one report
_WRITTEN = 5.0  # seconds that a lookup waits for an equal payload before it to be written
_HELD = 10_000  # captures between lookup and report; warcprox's own queues take some 2,000
_AGAIN = 1.0  # seconds after which captures are sent again that could not be reported
_COMMIT = 30.0  # seconds for which warcprox's end waits for the server, to commit
_ASK_AGAIN = 1  # seconds between two attempts to begin a crawl
_RULES_HOLD = 300  # seconds after which the index's rules are read again
_YES_OR_NO = {
    "1": True,
    "yes": True,
    "true": True,
    "": False,
    "0": False,
    "no": False,
    "false": False,
}
_COVERS = {"covers": "entity"}  # a crawl says so when it begins; without one each lookup must


class Rules:
    """What the index takes, from the settings that ``GET /stats`` shows."""

    def __init__(self, settings):
        self._statuses = set()
        for part in settings["status"].lower().split(","):
            first, last = part.strip().replace("x", "0"), part.strip().replace("x", "9")
            self._statuses |= set(range(int(first), int(last) + 1))
        self._statuses -= {204, 205, 206, 304}  # empty or partial, so never an original
        self._mime = re.compile(settings["mime"] or "(?!)", re.IGNORECASE)
        self._whitelist, self._least = settings["whitelist"], settings["min_size"]

    def take(self, status, mime, size):
        """Whether a response may become an original."""
        matches = self._mime.match(mime or "") is not None
        return status in self._statuses and matches is self._whitelist and size >= self._least


class Held:
    """Captures that were looked up and not found, until the server has them.

    `Store` takes them when they are written. Safe to use from any thread.
    """

    def __init__(self, client):
        self._client = client
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # held until the server has acknowledged
        self._waiting = {}  # id → (recorded_url, digest, crawls), in the order of the chain
        self._given_up = set()  # ids of those that no lookup waits for any more
        self._digests = Counter()  # of what waits or is being sent
        self.some = threading.Event()  # set when there is something to send, or soon will be

    def add(self, recorded_url, digest, crawls):
        """Hold a capture that the writer has yet to write, to be reported to `crawls`."""
        with self._lock:
            if len(self._waiting) >= _HELD:  # was not written, and never came to `Store`
                self._forget(next(iter(self._waiting)))
            self._waiting[id(recorded_url)] = recorded_url, digest, crawls
            self._digests[digest] += 1
        self.some.set()

    def drop(self, recorded_url):
        """Forget a capture that has passed the writer, unless it was written."""
        with self._lock:
            if recorded_url.warc_records is None and id(recorded_url) in self._waiting:
                self._forget(id(recorded_url))

    def _forget(self, key):
        self._given_up.discard(key)
        self._release([self._waiting.pop(key)[1]])

    def _release(self, digests):
        self._digests.subtract(digests)
        for digest in digests:
            if not self._digests[digest]:
                del self._digests[digest]

    def settle(self, digest):
        """Let captures of a payload be written and reported before it is looked up."""
        end = time.monotonic() + _WRITTEN
        while self._digests.get(digest):
            with self._lock:
                unwritten = [
                    key
                    for key, (recorded_url, text, _) in self._waiting.items()
                    if text == digest and recorded_url.warc_records is None
                ]
                if time.monotonic() > end:  # the writer has failed, or stands still
                    self._given_up.update(unwritten)
                done = self._given_up.issuperset(unwritten)
            if done:
                self.send()
                return
            time.sleep(0.001)

    def send(self):
        """Report all that is written by now; what the server cannot take the client keeps."""
        with self._sending:
            with self._lock:
                done = [
                    key for key, one in self._waiting.items() if one[0].warc_records is not None
                ]
                taken = [self._waiting.pop(key) for key in done]
                self._given_up.difference_update(done)
            try:
                captures = {}
                for recorded_url, digest, crawls in taken:
                    for crawl in crawls:
                        captures.setdefault(crawl, []).extend(_captures(recorded_url, digest))
                for crawl, some in captures.items():
                    self._client.report(some, crawl=crawl)
                if self._client.kept:
                    self._client.flush()
            finally:
                with self._lock:
                    self._release([digest for _, digest, _ in taken])

    def __len__(self):
        return len(self._waiting)


def _captures(recorded_url, digest):
    """What to report of a capture that has passed the writer: nothing unless it is a response."""
    records = recorded_url.warc_records
    if not records or records[0].type != b"response":
        return []
    record = records[0]
    capture = {
        "digest": digest,
        "url": recorded_url.url,
        "date": record.date.decode("ascii"),
        "status": recorded_url.status,
        "mime": recorded_url.mimetype or "",
        "size": recorded_url.response_recorder.payload_size(),
        "record_id": record.id.decode("latin-1"),
        "container": record.warc_filename,
        "offset": record.offset,
    }
    return [capture]


def _yes_or_no(text):
    return _YES_OR_NO[text.strip().lower()]


def _setting(name, parse):
    """The value of a variable; ends warcprox with a sentence if it is none."""
    text = os.environ.get(name, "")
    try:
        return parse(text)
    except (KeyError, ValueError) as error:
        allowed = "yes or no" if parse is _yes_or_no else "a number of seconds"
        raise SystemExit(f"{name}: {text!r} is not {allowed}") from error


class Session:
    """What both plugins share: the client, and which crawls may be written to."""

    def __init__(self):
        self.url = os.environ.get("DEDUPINDEX_URL") or "http://127.0.0.1:8484"
        self.commit = _setting("DEDUPINDEX_COMMIT", _yes_or_no)
        renew = _setting("DEDUPINDEX_FILTER", lambda text: float(text or 0))
        try:
            self.client = Client(
                self.url,
                token=os.environ.get("DEDUPINDEX_TOKEN", "").strip(),
                request_timeout=5,
                digest_filter=DigestFilter(renew=renew) if renew > 0 else None,
            )
        except (DedupError, ValueError) as error:
            raise SystemExit(f"DEDUPINDEX_URL: {error}") from error
        self.default = os.environ.get("DEDUPINDEX_CRAWL", "")
        self.unreported = 0  # stored in full for a crawl that takes no captures
        self.counts = Counter()  # what this plugin left alone, by reason
        self._lock = threading.Lock()
        self._open = {}  # crawl: True once begun, or when to try again; False: it has ended
        self._told = set()
        self._rules, self._rules_until = None, 0.0
        self.held = Held(self.client)
        self.looks_up = self.reports = False  # which plugins there are
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

    def takes(self, recorded_url):
        """Whether the index may know or take a response: one to GET, whole, and within its rules.

        As long as the server has not told its rules all are looked up.
        """
        if (
            not getattr(recorded_url, "response_recorder", None)
            or not recorded_url.payload_digest
            or recorded_url.truncated
            or (recorded_url.method or "").upper() != "GET"
        ):
            return False
        size = recorded_url.response_recorder.payload_size()
        rules = self._known_rules()
        return rules is None or rules.take(recorded_url.status, recorded_url.mimetype, size)

    def _known_rules(self):
        with self._lock:
            now = time.monotonic()
            if now < self._rules_until:
                return self._rules
            self._rules_until = now + (_RULES_HOLD if self._rules else _AGAIN)
        try:
            self._rules = Rules(self.client.settings())
            self._rules_until = now + _RULES_HOLD
        except (DedupError, KeyError, TypeError, ValueError, re.error) as error:
            if not isinstance(error, IndexUnavailable):
                self.tell(f"the rules of the index are not known, all is looked up: {error!r}")
        return self._rules

    def hold(self, recorded_url, digest, places):
        """Keep a capture that was not found, to be reported where it is written to a crawl."""
        crawls = [crawl for _, crawl in places if crawl]
        if crawls and self.reports:
            self.held.add(recorded_url, digest, crawls)
        elif self._is_to_be_reported(recorded_url):
            with self._lock:
                self.unreported += 1

    def _is_to_be_reported(self, recorded_url):
        """Whether a capture is of a crawl, which may not take it."""
        buckets = (recorded_url.warcprox_meta or {}).get("dedup-buckets")
        if isinstance(buckets, dict):
            return any(mode != "ro" for mode in buckets.values())
        return bool(self.default)

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
                self.tell(f"crawl {name} is begun later, when {self.url} answers: {error}")
                return True
            self.tell(
                f"crawl {name} is looked up but not reported to: {error}. Index its WARCs in the "
                "end: bin/index --add --crawl NAME WARCS INDEX"
            )
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
        self._session.looks_up = True

    def _process_url(self, recorded_url):
        try:
            if self._session.takes(recorded_url) and self.should_dedup(recorded_url):
                self._look_up(recorded_url)
        except Exception:  # whatever it is, the response is stored
            _log.exception("a capture was not looked up")

    def _look_up(self, recorded_url):
        mine = spelled(recorded_url, self.options)
        places = self._session.places(recorded_url)
        self._session.held.settle(mine)
        mime = {"mime": recorded_url.mimetype} if recorded_url.mimetype else {}
        for place, _ in places:
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
        self._session.hold(recorded_url, mine, places)


def _dedup_info(original):
    info = {"url": original.url_bytes, "date": original.date.encode("ascii")}
    if original.record_id:
        info["id"] = b"<" + original.record_id.encode("latin-1") + b">"
    return info


class Store(DedupableMixin):
    """Reports responses that were written, many at once when many come."""

    def __init__(self, options=warcprox.Options(), controller=None):  # noqa: B008  (theirs)
        DedupableMixin.__init__(self, options)
        self.options = options
        self._session = session()
        self._session.reports = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dedupindex-store", daemon=True)

    def start(self):
        """Called by warcprox when it starts."""
        self._thread.start()

    def notify(self, recorded_url, records):
        """Called by warcprox for each capture that has passed the chain, written or not."""
        try:
            session = self._session
            alone = not session.looks_up  # of the two plugins
            if alone and session.takes(recorded_url) and self.should_dedup(recorded_url):
                mine = spelled(recorded_url, self.options)
                session.hold(recorded_url, mine, session.places(recorded_url))
            session.held.drop(recorded_url)
        except Exception:  # it is in the WARC all the same, and can be indexed from there
            _log.exception("a capture was not reported")

    def _run(self):
        held = self._session.held
        while not self._ended.is_set():
            held.some.wait(_AGAIN)  # or so long, if the client has kept some in an outage
            self._ended.wait(_GATHERED)  # a request for each capture would slow warcprox
            held.some.clear()
            try:
                held.send()
            except Exception:  # nothing may end this thread before warcprox ends
                _log.exception("captures were not reported")
            if len(held):
                held.some.set()

    def stop(self):
        """Called by warcprox when it ends and all records are written."""
        self._ended.set()
        self._session.held.some.set()
        self._thread.join()
        client = self._session.client
        try:
            self._session.held.send()
        except Exception:
            _log.exception("captures were not reported")
        if self._session.commit:
            end = time.monotonic() + _COMMIT
            for name in self._session.begun():
                self._commit(name, end)
        client.close()
        counts = client.counts.as_json()
        counts["not_reported"] += self._session.unreported
        _log.warning("%s %s", counts, dict(self._session.counts))
        if counts["not_reported"]:
            _log.warning(
                "stored and not reported: %d; index the WARCs, as later crawls store these again "
                "otherwise: bin/index --add --crawl NAME WARCS INDEX", counts["not_reported"],
            )  # fmt: skip

    def _commit(self, name, end):
        """Commit a crawl; wait for a server that is away, as long as captures wait for it, too."""
        while True:
            try:
                self._session.client.commit(name, "warcprox has ended")
                return
            except DedupError as error:
                left = end - time.monotonic()
                if not isinstance(error, IndexUnavailable) or left <= 0:
                    _log.warning("crawl %s is not committed: %s", name, error)
                    return
                self._session.tell(f"crawl {name} is committed when the server answers: {error}")
                time.sleep(min(_AGAIN, left))
