"""Nodes of Apache Cassandra for tests: jars from Maven Central, a ring on loopback addresses.

The nodes of a ring share a port, as drivers want it, and differ by address: 127.0.0.1, 127.0.0.2…
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dedupindex.index.address import Address
from dedupindex.index.cassandra_schema import made
from dedupindex.index.cql import Statement, Use, connect, write_all
from tests.conftest import need
from tests.peers.environments import PEERS

VERSION = "5.0.9"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
DEADLINE = 180.0  # seconds; a busy machine starts three of them

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.cassandra</groupId>
<artifactId>cassandra-all</artifactId><version>{VERSION}</version></dependency></dependencies>
</project>"""
_YAML = """\
cluster_name: dedupindex
num_tokens: 8
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: {address}
rpc_address: {address}
native_transport_port: {port}
storage_port: {storage}
commitlog_sync: periodic
commitlog_sync_period: 10s
data_file_directories: [{home}/data]
commitlog_directory: {home}/commitlog
saved_caches_directory: {home}/saved
hints_directory: {home}/hints
cdc_raw_directory: {home}/cdc
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage}"}}]
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
memtable_allocation_type: offheap_objects
memtable_heap_space: 96MiB
memtable_offheap_space: 96MiB
concurrent_reads: 8
concurrent_writes: 8
concurrent_compactors: 1
file_cache_size: 32MiB
sstable:
  selected_format: bti
storage_compatibility_mode: NONE
auto_snapshot: false
dynamic_snitch: false
hinted_handoff_enabled: true
read_request_timeout: 10s
write_request_timeout: 10s
cas_contention_timeout: 10s
range_request_timeout: 30s
truncate_request_timeout: 60s
"""
_LOGBACK = """<configuration><appender name="F" class="ch.qos.logback.core.FileAppender">
<file>{home}/system.log</file><encoder><pattern>%-5level %date{{ISO8601}} %F:%L - %msg%n</pattern>
</encoder></appender><root level="INFO"><appender-ref ref="F"/></root></configuration>"""
# What Cassandra asks of Java 17: a word for each module's package.
_EXPORTS = """
java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch
java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry
java.rmi/sun.rmi.server java.rmi/sun.rmi.transport.tcp java.sql/java.sql
jdk.attach/sun.tools.attach jdk.unsupported/sun.misc
"""
_OPENS = """
java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.math
java.base/java.lang.reflect java.base/java.net java.base/java.nio java.base/java.nio.charset
java.base/java.nio.file.spi java.base/java.util java.base/java.util.concurrent
java.base/java.util.concurrent.atomic java.base/java.util.concurrent.locks
java.base/jdk.internal.loader java.base/jdk.internal.math java.base/jdk.internal.module
java.base/jdk.internal.ref java.base/jdk.internal.reflect java.base/jdk.internal.util.jar
java.base/sun.nio.ch java.management/javax.management java.rmi/sun.rmi.transport.tcp
jdk.management/com.sun.management.internal jdk.management.agent/jdk.internal.agent
"""


def cassandra_jars() -> Path:
    """The directory of Cassandra's jars, fetched from Maven Central the first time."""
    need("java", found=shutil.which("java") is not None)
    PEERS.mkdir(exist_ok=True)
    home = PEERS / f"cassandra-{VERSION}"
    with open(PEERS / ".cassandra.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            need("mvn", found=shutil.which("mvn") is not None)
            with tempfile.TemporaryDirectory(dir=PEERS) as folder:
                (Path(folder) / "pom.xml").write_text(_POM)
                words = ["mvn", "-q", "-B", COPY, f"-DoutputDirectory={folder}/lib"]
                done = subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL)
                need(f"Cassandra {VERSION} (from Maven Central)", found=done.returncode == 0)
                (Path(folder) / "lib").rename(home)
    return home


class Node:
    """A node, which is killed and started again as tests like it."""

    def __init__(self, home: Path, jars: Path, address: str, port: int, storage: int) -> None:
        self.address, self.port, self._home, self._jars = address, port, home, jars
        self._process: subprocess.Popen[bytes] | None = None
        (home / "conf").mkdir(parents=True)
        yaml = _YAML.format(address=address, port=port, storage=storage, home=home)
        (home / "conf" / "cassandra.yaml").write_text(yaml)
        (home / "conf" / "logback.xml").write_text(_LOGBACK.format(home=home))

    def start(self, *, alone: bool) -> None:
        """Start, and wait until it answers; a node that is `alone` need not wait for others."""
        home, flags = self._home, []
        for option, names in (("--add-exports", _EXPORTS), ("--add-opens", _OPENS)):
            for name in names.split():
                flags += [option, f"{name}=ALL-UNNAMED"]
        settings = {
            "cassandra.config": f"file://{home}/conf/cassandra.yaml",
            "cassandra.storagedir": home,
            "cassandra.logdir": home,
            "logback.configurationFile": f"file://{home}/conf/logback.xml",
            "cassandra-foreground": "yes",
            "cassandra.ring_delay_ms": 1000 if alone else 3000,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "java.net.preferIPv4Stack": "true",
            "jdk.attach.allowAttachSelf": "true",
            "java.io.tmpdir": home,
        }
        # It does not outlive the tests, even if these are killed.
        words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        words += ["java", "-Xms256m", "-Xmx384m", "-Xss256k", "-XX:+UseSerialGC"]
        words += ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:MaxDirectMemorySize=256m"]
        words += flags + [f"-D{name}={value}" for name, value in settings.items()]
        words.append(f"-javaagent:{next(self._jars.glob('jamm-*.jar'))}")
        words += ["-cp", f"{home}/conf:{self._jars}/*"]
        words.append("org.apache.cassandra.service.CassandraDaemon")
        with open(home / "console.log", "ab") as log:
            self._process = subprocess.Popen(words, cwd=home, stdout=log, stderr=log)
        end = time.monotonic() + DEADLINE
        while not self._answers():
            alive = self._process.poll() is None
            assert alive and time.monotonic() < end, self._words()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), 1).close()
        except OSError:
            return False
        return True

    def _words(self) -> str:
        logs = [self._home / name for name in ("system.log", "console.log")]
        return "".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It does nothing meanwhile, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all its threads stand
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut does; returns when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Ring:
    """A cluster of nodes."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def address(self, keyspace: str = "", **options: object) -> str:
        """An address in it; without `keyspace`, of one that nobody has."""
        hosts = ",".join(f"{node.address}:{node.port}" for node in self.nodes)
        options = {"replication": len(self.nodes), **options}
        chosen = "&".join(f"{name}={value}" for name, value in options.items())
        return f"cassandra://{hosts}/{keyspace or f'k{secrets.token_hex(6)}'}?{chosen}"


_KEYS = {
    "capture": "dk",
    "place": "number",
    "number": "place",
    "container": "name",
    "about": "name",
    "crawl": "shelf",
    "reported": "crawl, part",
    "claim": "dk",
    "statistic": "crawl, kind, part",
}


class Keyspaces:
    """Keyspaces that tests use one after the other: to make one takes seconds. To be entered.

    As long as it is entered, a session is open, which the tests then share.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._free: list[str] = []
        self.spoiled: set[str] = set()  # addresses that are not used again

    def __enter__(self) -> Keyspaces:
        self._session = connect(Address.parse(self._ring.address()))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @contextmanager
    def some(self) -> Iterator[Callable[[], str]]:
        """Gives addresses of indexes that hold nothing."""
        taken: list[str] = []

        def one() -> str:
            taken.append(self._free.pop() if self._free else self._ring.address())
            return taken[-1]

        yield one
        for address in set(taken) - self.spoiled:
            self._empty(Address.parse(address).keyspace)
            self._free.append(address)

    def _empty(self, keyspace: str) -> None:
        """Remove all rows: quicker than to truncate."""
        session = self._session
        if not made(session, keyspace):
            return
        for table, key in _KEYS.items():
            keys = Statement(f"SELECT DISTINCT {key} FROM {keyspace}.{table}")
            where = " AND ".join(f"{name} = ?" for name in key.split(", "))
            remove = Statement(f"DELETE FROM {keyspace}.{table} WHERE {where}", Use.WRITE)
            rows = [row for page in session.scan(keys) for row in page]
            write_all(session, [(remove, row) for row in rows])


@contextmanager
def ring(count: int) -> Iterator[Ring]:
    """A cluster of `count` nodes, all of it gone afterwards."""
    jars = cassandra_jars()
    addresses = [f"127.0.0.{number}" for number in range(1, count + 1)]
    with tempfile.TemporaryDirectory(prefix="cassandra-") as folder, ExitStack() as stack:
        port, storage = _free_port(addresses), _free_port(addresses)
        nodes = []
        for number, address in enumerate(addresses):
            node = Node(Path(folder) / str(number), jars, address, port, storage)
            stack.callback(node.kill)  # it has to end before its directory goes
            node.start(alone=count == 1)
            nodes.append(node)
        yield Ring(nodes)


def _free_port(addresses: list[str]) -> int:
    """A port that is free on all addresses."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server((addresses[0], 0)))
            port = int(first.getsockname()[1])
            try:
                for address in addresses[1:]:
                    stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return port
