"""``bin/heritrix-profile``: make a Heritrix job that asks dedupindex."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit
from xml.sax.saxutils import escape

import click

from dedupindex.cli.common import Command, print_result, say
from dedupindex.cli.options import COUNT, flag, option, shared_options
from dedupindex.errors import SHIPPED, BadInput, BadSource
from dedupindex.index.address import is_cluster
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.lookup.decide import STRATEGY_ALIASES, Strategy
from dedupindex.runtime.tables import printable

CONF = SHIPPED / "conf" / "heritrix"
BEANS = "dedup-beans.xml"
SCRIPT = "dedupindex.groovy"
CLASSES = "dedup-classes"
COMPILING = 120  # seconds at most; it takes two
_WAITING = 2  # seconds at most, for a server to connect and to answer
_LONGEST = 1 << 20  # bytes of an answer that are read
PROFILE_NAME = "crawler-beans.cxml"
PROFILE = "org/archive/crawler/restlet/profile-crawler-beans.cxml"
_CONTACT = "ENTER_AN_URL_WITH_YOUR_CONTACT_INFO_HERE_FOR_WEBMASTERS_AFFECTED_BY_YOUR_CRAWL"
_MADE = "; the job is made all the same"
_SET_SERVER = f"set server in the {BEANS} of the job to the address that bin/serve prints"
_ADDRESS = re.compile(r"https?://[^\s/?#:@]+", re.IGNORECASE)
_HIGHEST_PORT = 65_535
_SERVER = re.compile(
    r"(?i:https?)://[\w.~:\[\]-]+(/([\w.~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?", re.ASCII
)
_MOST_SECONDS = 999_999_999  # of a setting


@dataclass(frozen=True)
class HeritrixJob:
    """The settings of a job that differ from the profile of Heritrix."""

    name: str
    server: str
    seeds: tuple[str, ...]
    contact: str  # the page that tells webmasters who crawls them
    token: str = ""  # of the crawler, if the index has tokens
    strategy: str = "DIGEST_ANY"
    namespace: str = ""  # whose crawls see one another and no others; empty: it is in none
    everything: bool = False  # look text up, too
    http2: bool = False
    digest_filter: int = 0  # seconds between two renewals; 0: none
    delay: bool = True
    conditional: bool = False  # fetch only what has changed


def make_job(heritrix: Path, directory: Path, job: HeritrixJob) -> None:
    """Write the files of a job; raises `BadSource` for another Heritrix, `BadInput`."""
    check_job(directory, job)
    profile = configured(profile_of(heritrix), job)
    beans, script = beans_for(job), script_for(heritrix)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SCRIPT).write_text(script, "utf-8")
    (directory / BEANS).touch(0o600)  # it may hold a token
    (directory / BEANS).write_text(beans, "utf-8")
    (directory / PROFILE_NAME).write_text(profile, "utf-8")


def check_job(directory: Path, job: HeritrixJob) -> None:
    """Raise `BadInput` for a directory that has a job, or settings that cannot be used."""
    target = directory / PROFILE_NAME
    if target.exists():
        raise BadInput(
            f"{target} already exists: name a new directory; to change the settings of this job, "
            f"edit {directory / BEANS}"
        )
    addresses = [("--contact", job.contact), ("--server", job.server)]
    for name, value in [*(("--seed", seed) for seed in job.seeds), *addresses]:
        if not _ADDRESS.match(value):
            raise BadInput(f"{name} {value!r} is not a URL: it begins with http:// or https://")
    _check_settings(job)


def _check_place(heritrix: Path, directory: Path) -> None:
    """Raise `BadInput` for a directory that is Heritrix's own, or has jobs in it."""
    place, home = directory.resolve(), heritrix.resolve()
    if place in (home, home / "jobs") or any(place.glob("*/*.cxml")):
        raise BadInput(
            f"{printable(str(directory))} is not for one job: it is Heritrix's own or has jobs in "
            f"it; name a new directory for this job, such as {printable(str(home / 'jobs/weekly'))}"
        )


def _check_settings(job: HeritrixJob) -> None:
    """Raise `BadInput` for a setting with which the script does not let Heritrix launch the job."""
    if not _is_server(job.server):
        raise BadInput(
            f"--server {printable(job.server)} is not the address of a server, such as "
            "http://127.0.0.1:8484: it has no user, no ?, no # and a port up to 65535"
        )
    if not re.fullmatch("[!-~]*", job.token):  # not shown: it is a secret
        raise BadInput(
            "--token is none that bin/token printed: such a token has ASCII letters, digits, _ "
            "and -, no spaces; copy it again"
        )
    if job.namespace:
        check_crawl_name(job.namespace, "namespace")
    if job.digest_filter > _MOST_SECONDS:
        raise BadInput(f"--digest-filter takes up to {_MOST_SECONDS} seconds")


def _is_server(address: str) -> bool:
    """Return whether the script takes an address: one that `java.net.URI` parses, with a host."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return False
    legal = _SERVER.fullmatch(address) is not None
    return legal and bool(parts.hostname) and port <= _HIGHEST_PORT


def script_for(heritrix: Path) -> str:
    """Return conf/heritrix/dedupindex.groovy, for Groovy 3 without an annotation of Groovy 4."""
    lines = (CONF / SCRIPT).read_text("utf-8").splitlines(keepends=True)
    if any(heritrix.glob("lib/groovy-3.*.jar")):
        lines = [line for line in lines if "POJO" not in line]
    return "".join(lines)


def compile_script(heritrix: Path, directory: Path) -> str:
    """Compile the script of a job with Heritrix's own Groovy; returns why not, or nothing.

    dedup-beans.xml has the name under which Heritrix looks for the classes. Without them it
    compiles the script for each launch, and Java is busy with the compiler for seconds more.
    """
    java = shutil.which(_java())
    jars = list(heritrix.glob("lib/groovy-[0-9]*.jar"))
    if java is None or len(jars) != 1:
        return "there is no Java here" if java is None else f"{heritrix} has no lib/groovy-*.jar"
    script = directory / SCRIPT
    version = jars[0].stem.removeprefix("groovy-")
    classes = directory / CLASSES / f"{sha256(script.read_bytes()).hexdigest()}-{version}"
    classes.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=classes.parent) as made:
        # The quick compiler of Java is enough for one script.
        words = [java, "-XX:TieredStopAtLevel=1", "-cp", f"{heritrix}/lib/*"]
        words += [
            "org.codehaus.groovy.tools.FileSystemCompiler",
            "-d",
            f"{made}/classes",
            str(script),
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILING)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"Java failed: {error}"
        if done.returncode:
            return f"Groovy failed: {done.stderr.strip()}"
        Path(made, "classes").rename(classes)
    return ""


def _java() -> str:
    """Name the Java that Heritrix's own start script takes."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def profile_of(heritrix: Path) -> str:
    """Return the profile for new jobs of an unpacked Heritrix; raises `BadSource`."""
    jars = list(heritrix.glob("lib/heritrix-engine-*.jar"))
    if len(jars) != 1:
        raise BadSource(f"{heritrix} is no Heritrix 3: it has no lib/heritrix-engine-*.jar")
    try:
        with zipfile.ZipFile(jars[0]) as jar:
            return jar.read(PROFILE).decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadSource(f"{jars[0]} has no {PROFILE}: {error}") from error


def configured(profile: str, job: HeritrixJob) -> str:
    """Return the profile with the edits of a job; raises `BadSource` if one does not apply."""
    edits = [
        (_CONTACT, _property(job.contact)),
        ("metadata.jobName=basic", f"metadata.jobName={_property(job.name)}"),
        ("http://example.example/example", "\n".join(_line(seed) for seed in job.seeds)),
        _default("logExtraInfo", "false", "true"),
        _after("<context:annotation-config/>", f'\n <import resource="{BEANS}"/>'),
        _after('<ref bean="fetchHttp"/>', '\n    <ref bean="dedupLookup"/>'),
        _after('<ref bean="warcWriter"/>', '\n    <ref bean="dedupStore"/>'),
    ]
    if job.conditional:
        around = '<ref bean="dedupConditions"/>\n    %s\n    <ref bean="dedupNotModified"/>'
        edits.append(('<ref bean="fetchHttp"/>', around % '<ref bean="fetchHttp"/>'))
    if job.http2:
        edits.append(('fetcher.FetchHTTP"', 'fetcher.FetchHTTP2"'))
    if not job.delay:
        edits += [_default("minDelayMs", "3000", "0"), _default("delayFactor", "5.0", "0")]
    for old, new in edits:
        profile = _edited(profile, old, new)
    return profile


def beans_for(job: HeritrixJob) -> str:
    """Return conf/heritrix/dedup-beans.xml with the settings of a job."""
    beans = (CONF / BEANS).read_text("utf-8")
    beans = _edited(beans, "server=http://127.0.0.1:8484", f"server={_property(job.server)}")
    beans = _edited(beans, "searchStrategy=DIGEST_ANY", f"searchStrategy={job.strategy}")
    if job.token:
        beans = _edited(beans, "\ntoken=\n", f"\ntoken={_property(job.token)}\n")
    if job.namespace:
        beans = _edited(beans, "\nnamespace=\n", f"\nnamespace={_property(job.namespace)}\n")
    if job.digest_filter:
        beans = _edited(beans, "digestFilter=\n", f"digestFilter={job.digest_filter}\n")
    if job.everything:
        beans = _edited(beans, 'value="^text/.*"', 'value="(?!)"')
    return beans


def _after(place: str, addition: str) -> tuple[str, str]:
    """Return the edit that adds text after a place."""
    return place, place + addition


def _default(name: str, value: str, chosen: str) -> tuple[str, str]:
    """Return the edit that sets a property which the profile has commented out."""
    shown = f'<property name="{name}" value="%s" />'
    return f"<!-- {shown % value} -->", shown % chosen


def _property(value: str) -> str:
    """Escape a value for a Java property list in XML."""
    return _line(value).replace("\\", "\\\\")


def _line(value: str) -> str:
    """Escape a line of text for XML; raises `BadInput` for anything else."""
    if not value or not value.isprintable():
        raise BadInput(f"{value!r} cannot be written into a Heritrix profile")
    return escape(value)


def _edited(text: str, old: str, new: str) -> str:
    """Return a text with `old` replaced; raises `BadSource` unless it has `old` exactly once."""
    if text.count(old) != 1:
        raise BadSource(
            f"this Heritrix is unknown: its profile has {old!r} {text.count(old)} times"
        )
    return text.replace(old, new)


def token_problem(job: HeritrixJob) -> str:
    """Return why a server does not let a job's token write to its crawls; "" if it does.

    Also "" if the server does not say. It writes nothing, and begins no crawl.
    """
    try:
        with closing(_connected(job.server)) as connection:
            status, content = _send(connection, job, *_write_request(job))
    except (OSError, HTTPException, ValueError):
        return ""
    problem = content.get("error")
    if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ""
    return printable(str(problem.get("message"))) if isinstance(problem, dict) else ""


def _write_request(job: HeritrixJob) -> tuple[str, str, str]:
    """Return path, body and type of a request that needs the right to write, and writes nothing.

    Its crawl is named as that of a launch now.
    """
    launch = time.strftime("%Y%m%d%H%M%S", time.gmtime())
    crawl = re.sub(r"[^A-Za-z0-9._-]", "_", f"{job.name}-{launch}")
    if not job.namespace:
        return f"/captures?crawl={crawl}", "", "application/x-ndjson"  # no captures
    # Only the beginning of a crawl names its namespace; this one has a setting that is refused.
    form = {"name": crawl, "namespace": job.namespace, "seen_by": "nobody"}
    return "/crawls", urlencode(form), "application/x-www-form-urlencoded"


class _Asked(NamedTuple):
    """What came of asking a server for its index."""

    served: _ServedIndex | None
    problem: str = ""  # a sentence, why it did not say
    is_ours: bool = False  # it is bin/serve


class _ServedIndex(NamedTuple):
    """What a server says of its index."""

    settings: dict[str, Any]
    engine: str
    has_filter: bool

    @classmethod
    def asked(cls, server: str, token: str) -> _Asked:
        """Ask a server for its index."""
        named = f"the server {printable(server)}"
        try:
            connection = _connected(server)
        except ssl.SSLCertVerificationError:  # the Java of Heritrix trusts other certificates
            return _Asked(None)
        except (OSError, HTTPException, ValueError) as error:  # the last two: no host or port
            reason = getattr(error, "strerror", None) or str(error)
            cure = _cure(error, server)
            return _Asked(None, f"{named} is not reached now ({reason}){_MADE}: {cure}")
        try:
            with closing(connection):
                status, content = _get(connection, server, "/stats", token)
                if status == HTTPStatus.OK and isinstance(content.get("settings"), dict):
                    found, _ = _get(connection, server, "/digest-filter", token)
                    engine = str(content.get("engine"))
                    index = cls(content["settings"], engine, found == HTTPStatus.OK)
                    return _Asked(index, is_ours=True)
        except (OSError, HTTPException, ValueError) as error:
            said = f"{named} does not answer as bin/serve does ({error!r}){_MADE}"
            if not server.lower().startswith("https:") and _takes_tls(server):
                said += f": it takes TLS, so its address begins with https://; {_SET_SERVER}"
            return _Asked(None, said)
        problem = content.get("error")
        if isinstance(problem, dict) and "message" in problem and status != HTTPStatus.NOT_FOUND:
            reason = printable(str(problem["message"]))
            said = f"{named} does not say what its index has ({reason}){_MADE}"
            return _Asked(None, said, is_ours=True)
        return _Asked(
            None,
            f"{named} is no dedupindex: it answers GET /stats with status {status}{_MADE}: "
            f"{_SET_SERVER}",
        )

    def takes_text(self) -> bool:
        """Return whether pages of text become originals."""
        mime, whitelist = self.settings.get("mime"), self.settings.get("whitelist")
        found = isinstance(mime, str) and re.match(mime or "(?!)", "text/html", re.IGNORECASE)
        return bool(found) is whitelist


def _connected(server: str) -> HTTPConnection:
    """Connect to an address of HTTP; raises `OSError`, `ValueError`."""
    address = urlsplit(server)
    kind = HTTPSConnection if address.scheme.lower() == "https" else HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=_WAITING)
    connection.connect()
    return connection


def _cure(error: Exception, server: str) -> str:
    """Return what to do about a server to which there is no connection."""
    if isinstance(error, socket.gaierror):
        return f"its name is not known here; {_SET_SERVER}"
    if isinstance(error, ssl.SSLError):
        return f"without --tls-cert its address begins with http://; {_SET_SERVER}"
    return "start bin/serve before you launch it"


def _takes_tls(server: str) -> bool:
    """Return whether a server answers TLS, whatever its certificate, at an address of HTTP."""
    try:
        _connected("https:" + server.partition(":")[2]).close()
    except ssl.SSLCertVerificationError:
        return True
    except (OSError, HTTPException, ValueError):
        return False
    return True


def _get(
    connection: HTTPConnection, server: str, path: str, token: str
) -> tuple[int, dict[str, Any]]:
    """Return the status of an answer, and the object in it, {} if there is none."""
    connection.request("GET", urlsplit(server).path.rstrip("/") + path, headers=_sent(token))
    return _answer(connection)


def _send(
    connection: HTTPConnection, job: HeritrixJob, path: str, body: str, kind: str
) -> tuple[int, dict[str, Any]]:
    """Post a body; return the status of the answer, and the object in it as `_get` does."""
    headers = {**_sent(job.token), "Content-Type": kind}
    where = urlsplit(job.server).path.rstrip("/") + path
    connection.request("POST", where, body.encode(), headers)
    return _answer(connection)


def _sent(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _answer(connection: HTTPConnection) -> tuple[int, dict[str, Any]]:
    with connection.getresponse() as answer:
        data = answer.read(_LONGEST)
    try:
        content = json.loads(data)
    except ValueError:
        content = None
    return answer.status, content if isinstance(content, dict) else {}


def _needs(chosen: dict[str, Any], served: _ServedIndex | None) -> Iterator[str]:
    """Yield what the index of a job lacks, or must have if its server does not say."""
    has = "not checked: its index must have" if served is None else "its index lacks"
    if chosen["digest_filter"] and served and is_cluster(served.engine):
        yield (
            "its index is on a cluster, which has no digest filter: every response is looked up; "
            "leave --digest-filter out"
        )
    elif chosen["digest_filter"] and not (served and served.has_filter):
        yield f"{has} a digest filter: bin/index --digest-filter INDEX makes it"
    if chosen["conditional"] and not (served and served.settings.get("etag") is True):
        yield (
            f"{has} what URLs answered last, which only a new index can have: "
            "bin/index --empty --etag --all INDEX makes one"
        )
    if chosen["everything"] and not (served and served.takes_text()):
        more = "" if served is None else ", and refuses what is reported of it"
        yield (
            f"{has} text{more}: make one that takes it in a new directory, and serve that to this "
            "job: bin/index --empty --all INDEX, or bin/index --all SOURCE... INDEX"
        )
    if not chosen["everything"] and served and served.takes_text():
        yield (
            "its index also has text, which this job stores in full without a lookup: with "
            "--everything, in another directory, it is looked up, too"
        )


_STRATEGIES = click.Choice([*Strategy.__members__, *STRATEGY_ALIASES])
EXAMPLES = """
bin/heritrix-profile ~/heritrix-3.13.0 ~/jobs/weekly \\
    --seed http://example.org/ --contact http://archive.example/crawler.html
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("heritrix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("job", type=click.Path(file_okay=False, path_type=Path))
@option("--server", metavar="URL", default="http://127.0.0.1:8484", help="Where bin/serve answers.")
@option("--token", default="", metavar="TOKEN", help="Token of bin/token, if the index has tokens.")
@option(
    "--seed", "seeds", multiple=True, required=True, metavar="URL", help="Seed URL; repeatable."
)
@option(
    "--contact", required=True, metavar="URL", help="Page that tells webmasters who crawls them."
)
@option("--strategy", type=_STRATEGIES, default="DIGEST_ANY", help="How duplicates are found.")
@option(
    "--namespace", default="", metavar="NAME",
    help="Namespace of its crawls: only crawls of the same one find what they store.",
)  # fmt: skip
@option(
    "--digest-filter", type=COUNT, default=0, metavar="SECONDS",
    help="Answer most misses from the filter of the index, renewed so often (0: ask for all).",
)  # fmt: skip
@flag("--everything", help="Also look up text; the index needs bin/index --all.")
@flag("--http2", help="Fetch with FetchHTTP2 in place of FetchHTTP.")
@flag("--conditional", help="Fetch only what has changed; the index needs bin/index --etag.")
@flag("--no-delay", help="Fetch without pauses: only from your own server.")
@shared_options("--json")
def command(heritrix: Path, job: Path, no_delay: bool, **chosen: Any) -> int:
    """Make the job directory JOB for HERITRIX, an unpacked Heritrix 3, with lookups by dedupindex.

    Its profile is that of Heritrix, with the edits of docs/crawlers.md.
    """
    if chosen["http2"] and chosen["conditional"]:
        raise click.UsageError("FetchHTTP2 sends no conditions: leave --http2 or --conditional out")
    if chosen["namespace"] and chosen["digest_filter"]:
        raise click.UsageError(
            "a digest filter lacks what is in a namespace: leave --namespace or --digest-filter out"
        )
    chosen["strategy"] = Strategy.parse(chosen["strategy"]).value
    name = job.resolve().name
    if len(name.split()) != 1:
        raise click.UsageError(
            f"{printable(name)!r} has spaces: Heritrix's start script takes its parts for several "
            "words; name another directory"
        )
    settings = HeritrixJob(name=name, delay=not no_delay, **chosen)
    check_job(job, settings)
    _check_place(heritrix, job)
    answer = _ServedIndex.asked(settings.server, settings.token)
    refused = token_problem(settings) if answer.is_ours else ""
    if refused and settings.token:
        raise BadInput(
            f"the server {printable(settings.server)} does not let --token write to crawls of "
            f"this job: {refused}. No job was made: give the token that bin/token printed for it, "
            "or name another directory, which names the crawls"
        )
    make_job(heritrix, job, settings)
    not_compiled = compile_script(heritrix, job)
    if not_compiled:
        say(f"the script was not compiled: {not_compiled}; Heritrix compiles it for each launch")
    if answer.problem:
        say(answer.problem)
    if refused:
        say(
            f"the server {printable(settings.server)} wants a token ({refused}){_MADE}, and would "
            f"store everything: set token in its {BEANS} to one of bin/token that may write to its "
            "crawls"
        )
    place = printable(str(job))
    jobs = shlex.quote(printable(str(job.resolve().parent)))
    start = shlex.quote(printable(str(heritrix / "bin/foreground_heritrix")))
    launch = f"{start} -a admin:PASSWORD -j {jobs} -r {shlex.quote(name)}"
    ready = f"{place} is ready; to launch it: {launch}"
    lines = [*_needs(chosen, answer.served), ready]
    print_result({"job": place, "name": name, "server": chosen["server"]}, lines)
    return 0
