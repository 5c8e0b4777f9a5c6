"""Use an index on a cluster, end to end.

bin/index → three nodes of Apache Cassandra → bin/index --copy to them → two bin/serve → two
crawlers, while a node is killed → commit → the node is started again → bin/index --copy back →
bin/purge → an object store → bin/dedup on two executors of Apache Spark.
Needs Java and Maven. Exit status: 0 success, 1 something is wrong, 3 Java or Maven is missing.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import click

from dedupindex import __version__
from demo import nodes
from demo.crawlers import AcknowledgedPayloads, Crawler, Watch, connected
from demo.executors import rewritten
from demo.harvest import digest_of, harvest
from demo.site import Page, hosted, text
from demo.steps import OUT, finished, product, server, step

CRAWL = "weekly"
STORED, NEW = 100, 200  # pages in the archive, and new pages that the crawl finds
_KILL_AT = 0.3  # share of the crawl after which a node is killed


@click.command("cluster-demo", help=__doc__)
@OUT
@click.version_option(__version__, message="dedupindex %(version)s")
@click.option("--nodes", "only", is_flag=True, help="Only start the nodes, until Ctrl-C.")
@click.pass_context
def main(context: click.Context, out: Path | None, only: bool) -> None:
    """Run the demonstration, and exit with its status."""
    try:
        context.exit(_only_nodes() if only else finished(_run, out))
    except (nodes.Missing, nodes.NodeFailed) as error:
        click.echo(f"bin/cluster-demo: {error}", err=True)
        context.exit(3 if isinstance(error, nodes.Missing) else 1)


def _ring() -> AbstractContextManager[nodes.Ring]:
    began = time.monotonic()
    step(f"1. Apache Cassandra {nodes.VERSION}: jars from Maven Central (the first time), then")
    print("   three small nodes on this machine, two of them at the same time: about a minute")
    return nodes.ring(3, nodes.jars(), lambda node: _up(node, began))


def _only_nodes() -> int:
    """Run three nodes until Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and stop them
    with _ring() as three:
        step(f"2. {three.address('try')}")
        print("   is the address of a new index. Ctrl-C stops the nodes and deletes their data.")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def _run(out: Path) -> int:
    wrong = show(_ring(), out)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    if not wrong:
        step(f"All numbers are right. The nodes were removed; the other files are in {out}. Next:")
        print(
            "   bin/index SOURCE... cassandra://node1,node2,node3/dedup      on nodes of your own"
        )
        print("   docs/operations.md, On a cluster")
    return 1 if wrong else 0


def _up(node: nodes.Node, began: float) -> None:
    print(f"   {node.address} answers, after {time.monotonic() - began:.0f} s", flush=True)


def show(ring: AbstractContextManager[nodes.Ring], out: Path) -> list[str]:
    """Run all steps but the first; returns what is wrong, as sentences."""
    with ring as three:
        address = three.address(CRAWL)
        wrong = _crawled(three, address, out, _copied(address, out))
    return wrong + rewritten(_pages("news.test", STORED), out)


def _pages(host: str, count: int) -> dict[str, Page]:
    """Pages of a host; other hosts have the same ones."""
    return {f"http://{host}/{n}": Page(text(f"page {n}", 200)) for n in range(count)}


def _copied(address: str, out: Path) -> dict[str, Any]:
    """Index a small harvest and copy the index to the cluster; returns the counts of the copy."""
    warc, index = out / "first.warc.gz", out / "index"
    step(f"2. Harvest a site of {STORED} pages; bin/index {warc} {index}")
    pages = _pages("news.test", STORED)
    with hosted(pages) as port:
        harvest(pages, port, warc)
    words = ["--whitelist", "--mime", ".*", "--json", warc, index]
    built = json.loads(product("index", *words))
    print(f"   {built['added']} originals in an index on LMDB")

    step(f"3. bin/index --copy {address} {index}")
    copied: dict[str, Any] = json.loads(
        product("index", "--copy", address, "--json", index, **_machine(out, 1))
    )
    print("   three copies of every capture in the cluster, written at LOCAL_QUORUM, read back:")
    print(f"   {copied['captures']} captures, content hash of both {copied['content']}")
    return {**copied, "added": built["added"]}


def _machine(out: Path, number: int) -> dict[str, str]:
    """Return the environment of a process that acts as another machine."""
    return {"XDG_STATE_HOME": str(out / f"machine-{number}")}


def _crawled(ring: nodes.Ring, address: str, out: Path, copied: dict[str, Any]) -> list[str]:
    """Crawl through two servers while a node is killed, commit, and copy the index back."""
    hosts = [_pages(host, STORED + NEW) for host in ("news.test", "mirror.test")]
    first = list(hosts[0].items())[:STORED]
    stored = AcknowledgedPayloads((digest_of(page.body), url) for url, page in first)
    with ExitStack() as stack:
        servers = [stack.enter_context(server(address, **_machine(out, n))) for n in (1, 2)]
        step(f"4. bin/serve {address}, twice, as on two machines:")
        print(f"   {' and '.join(servers)}")
        print(f"   Two crawlers: {', '.join(next(iter(pages)) for pages in hosts)} and so on,")
        print(f"   {STORED + NEW} pages each, the same on both: {STORED} stored, {NEW} new.")
        port = stack.enter_context(hosted(hosts[0] | hosts[1]))
        with connected(servers[0]) as index:
            index.begin(CRAWL)
        crawlers = [
            Crawler(pages, port, out / f"crawl-{number}.warc.gz", one, CRAWL, stored)
            for number, (pages, one) in enumerate(zip(hosts, servers, strict=True), 1)
        ]
        lost = _with_a_node_killed(ring, crawlers, [Watch(s, CRAWL, stored) for s in servers])
        counts = sum((one.counts for one in crawlers), Counter[str]())
        wrong = stored.wrong + _ended(servers, stored, counts)

        step("6. The node comes back, and the cluster is copied to an index on LMDB")
        lost.start(alone=False)
        print(f"   {lost.address} answers again")
        back = out / "back"
        print(f"   bin/index --copy {back} {address}")
        again = json.loads(product("index", "--copy", back, "--json", address, **_machine(out, 1)))
        print(f"   {again['captures']} captures, content hash of both {again['content']}")
        print(f"   and {again['of_crawls']} captures that only the crawl reported")
        asked = [one for crawler in crawlers for one in crawler.asked]
        equal = _count_equal_answers(servers[1], back, asked, out)
        print(f"   {equal} of {len(asked)} lookups have the same answer on the cluster and on LMDB")
        wrong += _purged(address, servers, *first[STORED // 2], out)
    expected = {
        "originals indexed": (copied["added"], STORED),
        "captures copied to the cluster": (copied["captures"], STORED),
        "captures copied back": (again["captures"], STORED),
        "their content": (again["content"], copied["content"]),
        "captures of the crawl copied back": (
            again["of_crawls"],
            counts["response"] - counts["again"],
        ),
        "lookups with the same answer": (equal, 2 * (STORED + NEW)),
        "pages that the crawlers wrote": (counts["revisit"] + counts["response"], len(asked)),
    }
    return wrong + [f"{what}: {a}, not {b}" for what, (a, b) in expected.items() if a != b]


def _with_a_node_killed(
    ring: nodes.Ring, crawlers: list[Crawler], watches: list[Watch]
) -> nodes.Node:
    """Run the crawl to its end and kill a node meanwhile; returns that node."""
    lost, total = ring.nodes[1], 2 * (STORED + NEW)
    for one in (*crawlers, *watches):
        one.start()
    while sum(len(one.asked) for one in crawlers) < _KILL_AT * total:
        if not any(one.is_alive() for one in crawlers):
            raise SystemExit("the crawlers have ended at once; is there an error above?")
        time.sleep(0.01)
    lost.kill()
    step(f"5. After {sum(len(one.asked) for one in crawlers)} pages: kill -9 {lost.address}")
    for crawler in crawlers:
        crawler.join()
    for watch in watches:
        watch.finish()
    asked = sum((one.counts for one in watches), Counter[str]())
    print(f"   Meanwhile {asked.total():,} lookups of stored payloads: {asked['Hit']:,} found,")
    print(f"   {asked['NotAsked']} not answered, {asked['Miss']} answered as new")
    return lost


def _ended(servers: list[str], stored: AcknowledgedPayloads, counts: Counter[str]) -> list[str]:
    """Commit the crawl, and look up everything acknowledged on both servers."""
    print(f"   The crawl was finished: {counts['revisit']} revisits,")
    print(f"   {counts['response']} responses stored and reported; {counts['waited']} times one")
    print(f"   crawler waited for a claim of the other; {counts['NotAsked']} not answered")
    if twice := counts["response"] - NEW:
        print(f"   ({twice} stored twice, because the holder of a claim was unknown)")
    wrong = []
    with connected(servers[0]) as index:
        index.commit(CRAWL)
    payloads = stored.all()
    for address in servers:
        with connected(address) as index:
            answers = index.lookups(payloads)
        found = sum(type(answer).__name__ == "Hit" for answer in answers)
        print(f"   committed; {address} has {found} of the {len(payloads)} stored payloads")
        if found != len(payloads):
            wrong.append(f"{address} has lost {len(payloads) - found} payloads")
    if counts["not acknowledged"]:
        wrong.append(f"{counts['not acknowledged']} captures were never acknowledged")
    if counts["revisit"] < 2 * STORED or len(payloads) != STORED + NEW:
        wrong.append(f"{len(payloads)} payloads, {counts['revisit']} revisits")
    return wrong


def _purged(address: str, servers: list[str], url: str, page: Page, out: Path) -> list[str]:
    """Take a URL out of the index on the cluster; no server finds it any more."""
    words = [address, "--url", url, "--json"]
    crawled = [out / f"crawl-{number}.warc.gz" for number in (1, 2)]
    step(f"7. bin/index --add --crawl {CRAWL} {' '.join(map(str, crawled))} {address}")
    product("index", "--add", "--crawl", CRAWL, *crawled, address, **_machine(out, 1))
    print("   the revisits of the crawl are known now, and")
    print(f"   bin/impact {address} --url {url}")
    before = json.loads(product("impact", *words, **_machine(out, 1)))
    product("purge", "--force", *words, **_machine(out, 1))
    found = [before[name]["captures"] for name in ("originals", "dependents")]
    print(f"   originals: {found[0]}; revisits of other URLs that refer to it: {found[1]}.")
    print(f"   bin/purge --force {address} --url {url}")
    answers = []
    for server_address in servers:
        with connected(server_address) as index:
            answers += [type(one).__name__ for one in index.lookups([(digest_of(page.body), url)])]
    print(f"   afterwards the servers answer: {', '.join(answers)}")
    wrong = [] if found[0] == 1 else [f"originals that a purge would remove: {found[0]}, not 1"]
    return wrong + [f"a server answers {one} for a purged URL" for one in answers if one != "Miss"]


def _count_equal_answers(address: str, index: Path, asked: list[tuple[str, str]], out: Path) -> int:
    """Count the lookups that a server answers exactly like the index in a directory."""
    lookups = [{"digest": digest, "url": url} for digest, url in asked]
    body = json.dumps({"lookups": lookups}).encode()
    request = Request(f"{address}/lookup", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        on_cluster = json.load(reply)["answers"]
    lines = out / "lookups.jsonl"
    lines.write_text("".join(f"{json.dumps(one)}\n" for one in lookups))
    on_lmdb = [json.loads(line) for line in product("lookup", index, "--batch", lines).splitlines()]
    pairs = zip(on_cluster, on_lmdb, strict=True)
    return sum(one == other and one["duplicate"] is True for one, other in pairs)


if __name__ == "__main__":
    main(prog_name="bin/cluster-demo")
