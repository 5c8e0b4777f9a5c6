"""Nodes of Apache Cassandra on this machine: jars from Maven Central, a ring on loopback addresses.

The nodes of a ring share a port, as drivers want it, and differ by address: 127.0.0.1, 127.0.0.2…
They are as small as possible, for trials and tests only.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from dedupindex.index.address import Address
from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra.cql import Statement, connect
from demo.steps import free_port

VERSION = "5.0.9"
PEERS = Path(__file__).resolve().parents[1] / ".peers"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
DATACENTER = "datacenter1"
DEADLINE = 180.0  # seconds; a busy machine starts three of them

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.cassandra</groupId>
<artifactId>cassandra-all</artifactId><version>{VERSION}</version></dependency></dependencies>
</project>"""
_YAML = """\
cluster_name: dedupindex
num_tokens: 8
auto_bootstrap: {bootstrap}
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
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
# Packages of Java 17's modules that Cassandra uses.
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


class Missing(Exception):
    """A program that a node needs is missing."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} is missing: {remedy}")
        self.what = what


class NodeFailed(Exception):
    """A node did not start; the message ends with its logs."""


def jars(directory: Path = PEERS) -> Path:
    """Return the directory of Cassandra's jars, fetched once; raises `Missing`."""
    if shutil.which("java") is None:
        raise Missing("java", "apt install openjdk-17-jre-headless")
    directory.mkdir(exist_ok=True)
    home = directory / f"cassandra-{VERSION}"
    with open(directory / ".cassandra.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _fetch(directory, home)
    return home


def _fetch(directory: Path, home: Path) -> None:
    if shutil.which("mvn") is None:
        raise Missing("mvn", "apt install maven")
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        (Path(folder) / "pom.xml").write_text(_POM)
        words = ["mvn", "-q", "-B", COPY, f"-DoutputDirectory={folder}/lib"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            output = " ".join(done.stdout.split())[:300]
            raise Missing(f"Cassandra {VERSION} (from Maven Central)", f"mvn: {output}")
        (Path(folder) / "lib").rename(home)


def _flags() -> list[str]:
    """Return the options that open Java's modules to Cassandra."""
    flags = []
    for option, names in (("--add-exports", _EXPORTS), ("--add-opens", _OPENS)):
        for name in names.split():
            flags += [option, f"{name}=ALL-UNNAMED"]
    return flags


class Node:
    """A node, which can be killed and started again."""

    def __init__(
        self,
        home: Path,
        jars: Path,
        where: tuple[str, int, int],
        also: str,
        datacenter: str,
        *,
        joins: bool = False,
    ) -> None:
        """`where`: address, and ports of clients and of other nodes; `also`: YAML.

        If it `joins` nodes that have data, it fetches its share first.
        """
        address, port, storage = where
        self.address, self.port, self.home, self._jars = address, port, home, jars
        self._jmx = free_port("127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None
        (home / "conf").mkdir(parents=True)
        yaml = _YAML.format(
            address=address, port=port, storage=storage, home=home, bootstrap=str(joins).lower()
        )
        (home / "conf" / "cassandra.yaml").write_text(yaml + also)
        rack = f"dc={datacenter}\nrack=rack1\n"
        (home / "conf" / "cassandra-rackdc.properties").write_text(rack)
        (home / "conf" / "logback.xml").write_text(_LOGBACK.format(home=home))

    def start(self, *, alone: bool) -> None:
        """Start, and wait until it answers; a node that is `alone` need not wait for others."""
        self.launch(alone=alone)
        self.wait()

    def launch(self, *, alone: bool) -> None:
        """Start its process."""
        home, flags = self.home, _flags()
        settings = {
            "cassandra.config": f"file://{home}/conf/cassandra.yaml",
            "cassandra.storagedir": home,
            "cassandra.logdir": home,
            "logback.configurationFile": f"file://{home}/conf/logback.xml",
            "cassandra-foreground": "yes",
            "cassandra.jmx.local.port": self._jmx,
            "cassandra.ring_delay_ms": 1000 if alone else 3000,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "java.net.preferIPv4Stack": "true",
            "jdk.attach.allowAttachSelf": "true",
            "java.io.tmpdir": home,
        }
        # It does not outlive who has started it, even if that is killed.
        words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        words += ["java", "-Xms256m", "-Xmx384m", "-Xss256k", "-XX:+UseSerialGC"]
        words += ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:MaxDirectMemorySize=256m"]
        words += flags + [f"-D{name}={value}" for name, value in settings.items()]
        words.append(f"-javaagent:{next(self._jars.glob('jamm-*.jar'))}")
        words += ["-cp", f"{home}/conf:{self._jars}/*"]
        words.append("org.apache.cassandra.service.CassandraDaemon")
        with open(home / "console.log", "ab") as log:
            self._process = subprocess.Popen(words, cwd=home, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when it answers. Raises `NodeFailed` if it ends, or does not in time."""
        assert self._process is not None
        end = time.monotonic() + DEADLINE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise NodeFailed(f"the node at {self.address} does not start: {self._log_ends()}")
            time.sleep(0.1)

    def nodetool(self, *words: object) -> str:
        """Return what Cassandra's ``nodetool`` prints about this node; raises `NodeFailed`."""
        command = ["java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_flags()]
        command += [f"-Duser.home={self.home}", f"-Dcassandra.storagedir={self.home}"]
        command += [f"-Dcassandra.config=file://{self.home}/conf/cassandra.yaml"]
        command += [
            "-cp",
            f"{self.home}/conf:{self._jars}/*",
            "org.apache.cassandra.tools.NodeTool",
        ]
        command += ["-h", "127.0.0.1", "-p", str(self._jmx), *map(str, words)]
        done = subprocess.run(command, cwd=self.home, capture_output=True, text=True)
        if done.returncode:
            said = f"{done.stdout}{done.stderr}"[-3000:]
            raise NodeFailed(f"nodetool {' '.join(map(str, words))}: {said}{self._log_ends()}")
        return done.stdout

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), 1).close()
        except OSError:
            return False
        return True

    def known(self) -> int:
        """Return how many others this node knows, -1 if it does not answer.

        The driver otherwise asks any node, and a node may know the others later than they know it.
        """
        from cassandra import DriverException  # an extra
        from cassandra.cluster import (
            EXEC_PROFILE_DEFAULT,
            Cluster,
            ExecutionProfile,
            NoHostAvailable,
        )
        from cassandra.policies import WhiteListRoundRobinPolicy

        only = WhiteListRoundRobinPolicy([self.address])
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(load_balancing_policy=only)}
        try:
            with Cluster(
                [self.address], port=self.port, protocol_version=4, execution_profiles=profiles
            ) as cluster:
                session = cluster.connect()
                return int(session.execute("SELECT count(*) FROM system.peers").one()[0])
        except (DriverException, NoHostAvailable):
            return -1

    def _log_ends(self) -> str:
        logs = [self.home / name for name in ("system.log", "console.log")]
        return "".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the process during the block; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all its threads stand
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def runs(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    def kill(self) -> None:
        """Kill it, like a power cut; returns when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Ring:
    """A cluster of nodes."""

    def __init__(self, nodes: list[Node], make: Callable[[int], Node], **options: object) -> None:
        """`make` makes one more node, of a number."""
        self.nodes, self._make, self._options = nodes, make, options

    def join(self) -> Node:
        """Start one more node, which fetches its share of the data; return it when it has that."""
        node = self._make(len(self.nodes))
        node.start(alone=False)
        self.nodes.append(node)
        self.await_all()
        return node

    def address(self, keyspace: str = "", **options: object) -> str:
        """Return an address in this cluster; without `keyspace`, with a new one."""
        hosts = ",".join(f"{node.address}:{node.port}" for node in self.nodes)
        options = {"replication": len(self.nodes), **self._options, **options}
        chosen = "&".join(f"{name}={value}" for name, value in options.items())
        return f"cassandra://{hosts}/{keyspace or f'k{secrets.token_hex(6)}'}?{chosen}"

    def await_all(self) -> None:
        """Return when every node knows all others; of a single one there are none."""
        end, others = time.monotonic() + DEADLINE, len(self.nodes) - 1
        while others and any(node.known() != others for node in self.nodes):
            if time.monotonic() > end:
                raise NodeFailed("the nodes do not find each other")
            time.sleep(0.2)
        with closing(retry(partial(connect, Address.parse(self.address())))) as session:
            retry(partial(session.execute, Statement("SELECT release_version FROM system.local")))

    def mend(self) -> None:
        """Start the nodes that were killed, all at once."""
        killed = [node for node in self.nodes if not node.runs()]
        for node in killed:
            node.launch(alone=len(self.nodes) == 1)
        for node in killed:
            node.wait()


@contextmanager
def ring(
    count: int,
    jars: Path,
    started: Callable[[Node], None] = lambda node: None,
    also: str = "",
    datacenters: Sequence[str] = (DATACENTER,),
    **options: object,
) -> Iterator[Ring]:
    """A cluster of `count` nodes, all of it gone afterwards; `started` is told of each.

    `also` are further settings of the nodes, as YAML, and `options` those of its addresses. The
    nodes are in `datacenters` by turns.
    """
    addresses = [f"127.0.0.{number}" for number in range(1, count + 2)]  # another may join
    with tempfile.TemporaryDirectory(prefix="cassandra-") as folder, ExitStack() as stack:
        port, storage = free_port(*addresses), free_port(*addresses)

        def make(number: int, *, joins: bool = True) -> Node:
            home, where = Path(folder) / str(number), (addresses[number], port, storage)
            datacenter = datacenters[number % len(datacenters)]
            node = Node(home, jars, where, also, datacenter, joins=joins)
            stack.callback(node.kill)  # it has to end before its directory goes
            return node

        nodes = [make(number, joins=False) for number in range(count)]
        first, *others = nodes
        first.start(alone=count == 1)  # the others ask it who is there
        started(first)
        for node in others:
            node.launch(alone=False)
        for node in others:
            node.wait()
            started(node)
        found = Ring(nodes, make, **options)
        found.await_all()
        yield found
