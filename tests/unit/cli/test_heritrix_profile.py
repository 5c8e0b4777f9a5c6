"""The job that is made for Heritrix; `peers/test_heritrix.py` runs it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import zipfile
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient

from dedupindex.cli.heritrix_profile import (
    CLASSES,
    CONF,
    PROFILE,
    SCRIPT,
    HeritrixJob,
    compile_script,
    make_job,
)
from dedupindex.errors import BadInput, BadSource
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import STRATEGY_ALIASES
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_operation import certificate
from tests.support.captures import capture
from tests.support.commands import typed
from tests.support.ports import refusing_port
from tests.support.stub_server import replying, stub_server

# The places of the profile of Heritrix 3.13.0 at which something is edited.
STOCK = """<beans xmlns:context="c"><context:annotation-config/>
metadata.operatorContactUrl=ENTER_AN_URL_WITH_YOUR_CONTACT_INFO_HERE_FOR_WEBMASTERS_AFFECTED_BY_YOUR_CRAWL
metadata.jobName=basic
http://example.example/example
<bean id="fetchHttp" class="org.archive.modules.fetcher.FetchHTTP"/>
<ref bean="fetchHttp"/><ref bean="warcWriter"/>
<!-- <property name="delayFactor" value="5.0" /> -->
<!-- <property name="minDelayMs" value="3000" /> -->
<!-- <property name="logExtraInfo" value="false" /> -->
</beans>"""
JOB = HeritrixJob("weekly", "http://127.0.0.1:1", ("http://a.example/?b&c",), "http://d.example/")


@pytest.fixture
def heritrix(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "heritrix", STOCK)


def unpacked(home: Path, profile: str) -> Path:
    (home / "lib").mkdir(parents=True)
    with zipfile.ZipFile(home / "lib" / "heritrix-engine-3.13.0.jar", "w") as jar:
        jar.writestr(PROFILE, profile)
    return home


def text_of(path: Path) -> str:
    return "".join(ElementTree.parse(path).getroot().itertext())


def test_a_job_directory_is_complete(heritrix: Path, tmp_path: Path) -> None:
    make_job(heritrix, tmp_path / "weekly", JOB)
    profile = tmp_path / "weekly" / "crawler-beans.cxml"
    assert "metadata.jobName=weekly\nhttp://a.example/?b&c\n" in text_of(profile)
    assert "metadata.operatorContactUrl=http://d.example/\n" in text_of(profile)
    content = profile.read_text()
    for place in (
        "dedup-beans.xml",
        '"dedupLookup"',
        '"dedupStore"',
        'FetchHTTP"',
        '"3000" /> -->',
    ):
        assert content.count(place) == 1
    beans = tmp_path / "weekly" / "dedup-beans.xml"
    assert "\nserver=http://127.0.0.1:1\n" in text_of(beans)
    assert SCRIPT in beans.read_text() and (tmp_path / "weekly" / SCRIPT).stat().st_size


def test_options_change_the_profile(heritrix: Path, tmp_path: Path) -> None:
    chosen = replace(JOB, strategy="EXACT_URL", everything=True, http2=True, delay=False, token="s")
    chosen = replace(chosen, digest_filter=30, namespace="news&co")
    make_job(heritrix, tmp_path / "weekly", chosen)
    content = (tmp_path / "weekly" / "crawler-beans.cxml").read_text()
    assert 'FetchHTTP2"' in content and '<property name="minDelayMs" value="0" />' in content
    beans = (tmp_path / "weekly" / "dedup-beans.xml").read_text()
    assert "\ntoken=s\n" in beans and "\ndigestFilter=30\n" in beans
    assert "searchStrategy=EXACT_URL\n" in beans and "^text" not in beans
    assert "\nnamespace=news&amp;co\n" in beans


def test_bad_jobs_are_refused(heritrix: Path, tmp_path: Path) -> None:
    for wrong in (
        replace(JOB, name=""),
        replace(JOB, seeds=("http://a.example/", "x")),
        replace(JOB, seeds=("http:///a",)),
        replace(JOB, contact="y"),
        replace(JOB, server="127.0.0.1:8484"),
        replace(JOB, seeds=("http://a.example/\nb",)),
        replace(JOB, server="http://a\x00"),
        replace(JOB, namespace="news base"),
    ):
        with pytest.raises(BadInput):
            make_job(heritrix, tmp_path / "weekly", wrong)
        assert not (tmp_path / "weekly").exists()
    make_job(heritrix, tmp_path / "weekly", JOB)
    with pytest.raises(BadInput, match="already"):
        make_job(heritrix, tmp_path / "weekly", JOB)


def test_the_command_that_launches_a_job_names_its_directory(
    heritrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heritrix looks for jobs in a directory of its own only."""
    monkeypatch.chdir(tmp_path)
    words = ("--server", "http://127.0.0.1:1", "--seed", "http://a/", "--contact", "http://b/")
    said, _ = typed("heritrix-profile", heritrix, "my jobs/weekly", *words)
    assert f"foreground_heritrix -a admin:PASSWORD -j '{tmp_path}/my jobs' -r weekly\n" in said


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="is no Heritrix 3"):
        make_job(tmp_path, tmp_path / "weekly", JOB)
    other = unpacked(tmp_path / "other", STOCK.replace('<ref bean="warcWriter"/>', ""))
    with pytest.raises(BadSource, match="this Heritrix is unknown"):
        make_job(other, tmp_path / "weekly", JOB)
    assert not (tmp_path / "weekly").exists()


def test_the_script_is_compiled_under_the_name_that_the_beans_look_for(
    heritrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (heritrix / "lib" / "groovy-5.0.2.jar").touch()
    (heritrix / "lib" / "groovy-xml-5.0.2.jar").touch()
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nwhile [ "$1" != -d ]; do shift; done; mkdir "$2" && cp "$3" "$2"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    make_job(heritrix, tmp_path / "weekly", JOB)
    assert compile_script(heritrix, tmp_path / "weekly") == ""
    script = (tmp_path / "weekly" / SCRIPT).read_bytes()
    (classes,) = (tmp_path / "weekly" / CLASSES).iterdir()
    assert classes.name == f"{sha256(script).hexdigest()}-5.0.2"
    assert (classes / SCRIPT).read_bytes() == script


@pytest.mark.parametrize(
    ("java", "reason"),
    [
        (None, "there is no Java here"),
        ("#!/bin/sh\necho no memory >&2; exit 1\n", "Groovy failed: no memory"),
        ("no program", "Java failed: "),
    ],
)
def test_a_script_that_cannot_be_compiled_leaves_no_classes(
    heritrix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java: str | None,
    reason: str,
) -> None:
    (heritrix / "lib" / "groovy-5.0.2.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if java is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(java)
        (tmp_path / "bin" / "java").chmod(0o755)
    make_job(heritrix, tmp_path / "weekly", JOB)
    assert compile_script(heritrix, tmp_path / "weekly").startswith(reason)
    assert not list((tmp_path / "weekly").glob(f"{CLASSES}/*"))


def test_conditions_are_asked_for_before_the_fetch(heritrix: Path, tmp_path: Path) -> None:
    make_job(heritrix, tmp_path / "weekly", replace(JOB, conditional=True))
    profile = (tmp_path / "weekly" / "crawler-beans.cxml").read_text()
    chain = re.findall(r'<ref bean="(dedup\w+|fetchHttp)"/>', profile)
    assert chain == [
        "dedupConditions",
        "fetchHttp",
        "dedupNotModified",
        "dedupLookup",
        "dedupStore",
    ]
    words = ["--seed", "http://a.example/", "--contact", "http://d.example/", "--conditional"]
    _, messages = typed("heritrix-profile", heritrix, tmp_path / "x", *words, "--http2", status=2)
    assert "FetchHTTP2 sends no conditions" in messages


def test_groovy_3_gets_no_annotation_of_groovy_4(heritrix: Path, tmp_path: Path) -> None:
    shipped = (CONF / SCRIPT).read_text()
    for number, version in enumerate(("4.0.26", "3.0.10")):
        (heritrix / "lib" / f"groovy-{version}.jar").touch()
        make_job(heritrix, tmp_path / str(number), JOB)
        script = (tmp_path / str(number) / SCRIPT).read_text()
        assert (script == shipped) is (number == 0)
        assert ("POJO" in script) is (number == 0)
        assert script.count("@CompileStatic\n") == shipped.count("@CompileStatic\n") > 5


def made(heritrix: Path, job: Path, *options: str, status: int = 0) -> tuple[str, str]:
    words = ("--seed", "http://a.example/", "--contact", "http://d.example/")
    return typed("heritrix-profile", heritrix, job, *words, *options, status=status)


def test_names_of_strategies_of_the_deduplicator_are_taken(heritrix: Path, tmp_path: Path) -> None:
    for number, (name, meant) in enumerate(STRATEGY_ALIASES.items()):
        job = tmp_path / str(number)
        made(heritrix, job, "--strategy", name)
        assert f"searchStrategy={meant}\n" in (job / "dedup-beans.xml").read_text()


def test_a_directory_of_jobs_is_no_job(heritrix: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    (heritrix / "jobs").mkdir(exist_ok=True)
    made(heritrix, jobs / "weekly")
    for place in (heritrix, heritrix / "jobs", jobs):
        before = sorted(place.iterdir())
        said = made(heritrix, place, status=4)[1]
        assert f"{place} is not for one job" in said
        assert f"such as {heritrix.resolve()}/jobs/weekly" in said
        assert sorted(place.iterdir()) == before


def test_a_server_that_is_not_reached_is_named(heritrix: Path, tmp_path: Path) -> None:
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        said, messages = made(heritrix, tmp_path / "away", "--server", url)
    line = f"the server {url} is not reached now (Connection refused); the job is made all the same"
    assert " is ready; " in said and line in messages
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/dedup"
        _, messages = made(heritrix, tmp_path / "there", "--server", url)
    assert "not reached" not in messages
    assert f"{url} does not answer as bin/serve does (TimeoutError" in messages


def test_a_wrong_scheme_or_name_is_said(heritrix: Path, tmp_path: Path) -> None:
    """To start bin/serve would not help."""
    with stub_server(replying(404)) as url:
        secure = url.replace("http:", "https:")
        _, messages = made(heritrix, tmp_path / "plain", "--server", secure)
    assert f"the server {secure} is not reached now (" in messages
    assert "without --tls-cert its address begins with http://; set server in the" in messages
    _, named = made(heritrix, tmp_path / "name", "--server", "http://nosuchhost.invalid:8484")
    assert "its name is not known here; set server in the dedup-beans.xml of the job" in named
    cert, key = certificate(tmp_path, "one")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        _, secured = made(heritrix, tmp_path / "tls", "--server", url)
        server.shutdown()
    assert "it takes TLS, so its address begins with https://; set server in the" in secured
    assert "start bin/serve" not in messages + named + secured


def test_a_server_that_is_no_dedupindex_is_named(heritrix: Path, tmp_path: Path) -> None:
    for number, (answer, says) in enumerate((
        (replying(404, b"<h1>Not found</h1>"), "is no dedupindex: it answers GET /stats with "),
        (replying(200, b'{"settings": 1}'), "is no dedupindex: it answers GET /stats with "),
        (replying(200, b"[]", 9), "is no dedupindex: it answers GET /stats with status 200; "),
        (
            replying(401, b'{"error": {"code": "unauthorized", "message": "send a token"}}'),
            "does not say what its index has (send a token)",
        ),
    )):  # fmt: skip
        with stub_server(answer) as url:
            said, messages = made(heritrix, tmp_path / str(number), "--server", url, "--everything")
        assert f"the server {url} {says}" in messages and "is made all the same" in messages
        assert "its index must have text: make one that takes it in a new directory" in said


def test_only_what_the_index_lacks_is_said(
    heritrix: Path, tmp_path: Path, make_index: MakeIndex
) -> None:
    options = ("--everything", "--conditional", "--digest-filter", "60")
    whole = Settings(mime=".*", whitelist=True, etag=True)
    for name, settings in (("without", Settings()), ("with", whole)):
        index = make_index([capture(1)], settings)
        if name == "with":
            typed("index", "--digest-filter", index)
        live = LiveIndex(index)
        live.refresh()
        web = create_app(Config(index), live).test_client()

        def answer(asked: BaseHTTPRequestHandler, web: FlaskClient = web) -> None:
            with web.get(asked.path.removeprefix("/base")) as reply:
                replying(reply.status_code, reply.data)(asked)

        with stub_server(answer) as url:
            said, messages = made(heritrix, tmp_path / name, "--server", f"{url}/base", *options)
        assert messages.count("made all the same") == 0
        lacks = re.findall("^its index lacks (.*)$", said, re.MULTILINE)
        hint = "its index also has text, which this job stores in full without a lookup: with --"
        if name == "with":
            assert lacks == [] and hint not in said
            with stub_server(answer) as url:
                plain, _ = made(heritrix, tmp_path / "plain", "--server", f"{url}/base")
            assert f"{hint}everything, in another directory" in plain
        else:
            with stub_server(answer) as url:
                assert hint not in made(heritrix, tmp_path / "plain2", "--server", url)[0]
            assert lacks == [
                "a digest filter: bin/index --digest-filter INDEX makes it",
                "what URLs answered last, which only a new index can have: "
                "bin/index --empty --etag --all INDEX makes one",
                "text, and refuses what is reported of it: make one that takes it in a new "
                "directory, and serve that to this job: bin/index --empty --all INDEX, or "
                "bin/index --all SOURCE... INDEX",
            ]
            assert " is ready; " in said.splitlines()[-1]


def test_the_right_to_write_is_tried_before_the_crawl(
    heritrix: Path, tmp_path: Path, make_index: MakeIndex
) -> None:
    """Without a crawl, and without an error that the server counts if it may write."""
    index = make_index([capture(1)])
    live = LiveIndex(index)
    live.refresh()

    def made_with(name: str, *options: str, status: int = 0) -> str:
        """What is said of a job of this name; the server has the tokens as they are then."""
        web = create_app(Config(index), live).test_client()

        def answer(asked: BaseHTTPRequestHandler) -> None:
            sent = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
            headers = {key: asked.headers[key] or "" for key in ("Authorization", "Content-Type")}
            with web.open(asked.path, method=asked.command, data=sent, headers=headers) as reply:
                replying(reply.status_code, reply.data)(asked)

        with stub_server(answer, read=False) as url:
            said, messages = made(
                heritrix, tmp_path / name, "--server", url, *options, status=status
            )
        assert (tmp_path / name / "crawler-beans.cxml").exists() == (status == 0)
        assert web.get("/crawls").get_json()["crawls"] == []
        return said + messages

    assert "token" not in made_with("open-index", "--token", "any")  # an index without tokens
    roles = {
        "all": (),
        "reader": ("--role", "read"),
        "other": ("--crawls", "daily-*"),
        "news": ("--namespaces", "news"),
    }
    tokens = {
        name: typed("token", index, "--add", name, *options)[0].strip()
        for name, options in roles.items()
    }
    none = made_with("without")
    assert "wants a token (send a token: Authorization: Bearer <token>); the job is made" in none
    assert "set token in its dedup-beans.xml to one of bin/token that may write" in none
    for name, job, options in (
        ("all", "weekly", ()),
        ("other", "daily", ()),
        ("all", "namespaced", ("--namespace", "news")),
        ("news", "news", ("--namespace", "news")),
    ):
        said = made_with(job, "--token", tokens[name], *options)
        assert " is ready; " in said and "token" not in said, name
    for name, options, reason in (
        ("reader", (), "token reader has the role read; this needs write, for crawl 'refused-2"),
        ("other", (), "token other has the role write for crawls 'daily-*', which does not allow"),
        ("news", ("--namespace", "courts"), "in namespaces 'news', which does not allow this, for"),
        ("news", (), "in namespaces 'news', which does not allow this, for crawl 'refused-2"),
        ("wrong", (), "this token is not known here: it was removed, or belongs to another index"),
    ):
        token = tokens.get(name, "dedup_wrong")
        said = made_with("refused", "--token", token, *options, status=4)
        assert "does not let --token write to crawls of this job: " in said and reason in said
        assert "No job was made" in said and token not in said


@pytest.mark.parametrize(
    "server", ["http://a.example:99999", "http://b@a.example", "http://a.example/?b", "http://a:x"]
)
def test_an_address_that_heritrix_would_refuse_is_refused(
    heritrix: Path, tmp_path: Path, server: str
) -> None:
    _, messages = made(heritrix, tmp_path / "weekly", "--server", server, status=4)
    assert f"--server {server} is not the address of a server" in messages
    assert not (tmp_path / "weekly").exists()


@pytest.mark.parametrize("token", ["dedup_“a”", "dedup_ł", "dedup a"])
def test_a_token_that_is_none_is_refused_and_not_shown(
    heritrix: Path, tmp_path: Path, token: str
) -> None:
    _, messages = made(heritrix, tmp_path / "weekly", "--token", token, status=4)
    assert "--token is none that bin/token printed" in messages and token not in messages
    assert not (tmp_path / "weekly").exists()


def test_no_digest_filter_is_advised_to_an_index_on_a_cluster(
    heritrix: Path, tmp_path: Path
) -> None:
    def answer(asked: BaseHTTPRequestHandler) -> None:
        found = asked.path == "/stats"
        body = (
            {"settings": {}, "engine": "cassandra://h1/ks"}
            if found
            else {"error": {"code": "no_filter"}}
        )
        replying(200 if found else 404, json.dumps(body).encode())(asked)

    with stub_server(answer) as url:
        options = ("--server", url, "--digest-filter", "60")
        said, _ = made(heritrix, tmp_path / "weekly", *options)
    assert "its index is on a cluster, which has no digest filter: every response is" in said
    assert "bin/index --digest-filter" not in said


def test_a_digest_filter_does_not_go_with_a_namespace(heritrix: Path, tmp_path: Path) -> None:
    options = ("--namespace", "news", "--digest-filter", "60")
    _, messages = made(heritrix, tmp_path / "weekly", *options, status=2)
    assert "a digest filter lacks what is in a namespace" in messages
    assert not (tmp_path / "weekly").exists()


def test_every_setting_of_the_beans_is_in_the_manual() -> None:
    """In the table of docs/crawlers.md."""
    beans = (CONF / "dedup-beans.xml").read_text()
    names = re.findall(r"^(\w+)=", beans, re.MULTILINE)
    manual = (CONF.parents[1] / "docs" / "crawlers.md").read_text()
    table = manual.partition("### Settings, in `dedup-beans.xml`")[2].partition("\n### ")[0]
    assert len(names) > 8
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*names, "shouldProcessRule"}
    script = (CONF / SCRIPT).read_text()
    used = set(re.findall(r"(?:setting\(|parameter\('\w+', )'(\w+)'", script))
    used |= set(re.findall(r"settings\.(\w+)", script)) - {"text"}
    assert used == set(names)
    defaults = script.partition("DEFAULTS = [")[2].partition("]")[0]
    assert set(re.findall(r"(\w+): '", defaults)) == set(names)


def test_a_name_with_a_space_is_refused(heritrix: Path, tmp_path: Path) -> None:
    """Heritrix's start script would take it for two words."""
    words = ("heritrix-profile", heritrix, tmp_path / "my job", "--seed", "http://a.example/")
    _, messages = typed(*words, "--contact", "http://a.example/", status=2)
    assert "'my job' has spaces" in messages and not (tmp_path / "my job").exists()
