"""Running the application: Granian, several worker processes, and a stop that drops nothing.

When the server stops, its answers ask clients to close their connections, and no new connections
are accepted (`listeners.shut`); then the workers end. A worker that is replaced ends in the same
way; the connections that come meanwhile wait for its successor.

Workers are forked, at start and whenever one has died, so the main process never has a second
thread: a lock that another thread holds would stay locked in the child. Granian's thread for each
worker is replaced by `MainLoop`; the index is opened in a process of its own, as the driver of
Cassandra leaves a thread behind. A test counts the threads.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer, WorkerProcess

from dedupindex.errors import BadInput
from dedupindex.index import open_index, shared_filter
from dedupindex.index.address import ENVIRONMENT, is_cluster
from dedupindex.index.engine import IndexCounts
from dedupindex.index.identity import read_identity
from dedupindex.index.shared_filter import SharedFilter
from server import listeners, logs
from server.app import create_app
from server.background_merge import BackgroundMerge
from server.config import DRAIN, HEADER_TIMEOUT, THREADS, Config
from server.filter_builder import FilterBuilder
from server.live_index import LiveIndex
from server.metrics import Metrics, block_size
from server.wsgi_fast_path import AccessLog, HotRoutes

_CHECK_EVERY = 0.05  # seconds between two checks of the workers by the main process
_LAST_ACCEPTED = 1.0  # seconds after SIGTERM in which a worker may still accept connections
_PARENT_EVERY = 1.0  # seconds between two checks of the main process by a worker
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", *ENVIRONMENT)


def notify(state: str) -> None:
    """Send systemd a state such as ``READY=1``, for a unit of ``Type=notify``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
        stream.sendto(state.encode(), address)


class Started(NamedTuple):
    """A server that answers."""

    url: str
    workers: int
    counts: IndexCounts


def serve(config: Config, ready: Callable[[Started], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called once requests are answered.

    Must be called in the main thread, because it handles signals, and while there is no other.

    Raises:
        CannotListen: the address cannot be bound.
        DedupError: the index cannot be opened.
    """
    logs.configure(config.log_format)
    if config.filter_memory and not is_cluster(read_identity(config.index).engine):
        raise BadInput(
            "a filter in memory is for an index on a cluster; another needs none to answer quickly"
        )
    multiprocessing.set_start_method("fork", force=True)  # workers inherit sockets and counts
    with ProcessPoolExecutor(1) as reader:
        counts = reader.submit(_counts, config.index).result()
    sockets = listeners.listen(config.host, config.port, config.workers)
    port = sockets[0].getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.tls else "http"
    started = Started(f"{scheme}://{host}:{port}", config.workers, counts)
    with suppress(ValueError, OSError):  # as many connections as the system lets us have
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = _GranianServer(config, port, sockets, lambda: ready(started))
    server.serve(target_loader=server.load, wrap_loader=False)


def _counts(index: Path) -> IndexCounts:
    with closing(open_index(index)) as engine, engine.view() as view:
        return view.counts()


class MainLoop(threading.Event):
    """The event that wakes Granian's main loop; waiting for it also supervises the workers.

    Granian sets it in a handler of signals, which may interrupt the thread that waits just when
    `Event.wait` holds the lock that `Event.set` needs: the server would never stop. So a pipe takes
    the place of the lock.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check, self._happened = check, False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def set(self) -> None:
        self._happened = True
        with suppress(BlockingIOError):  # it is full: that wakes, too
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        self._happened = False

    def is_set(self) -> bool:
        return self._happened

    def wait(self, timeout: float | None = None) -> bool:
        while not self._happened:
            if self._poll.poll(_CHECK_EVERY * 1000):
                os.read(self._reader, 1 << 16)
            else:
                self._check()
        return True


class _GranianServer(MPServer):
    """Granian's server with a socket for each worker, a report of readiness, and a soft stop."""

    def __init__(
        self, config: Config, port: int, sockets: list[socket.socket], ready: Callable[[], None]
    ) -> None:
        super().__init__(
            "dedupindex",
            address=config.host,
            port=port,
            interface=Interfaces.WSGI,
            workers=config.workers,
            blocking_threads=THREADS,
            backlog=listeners.BACKLOG,
            backpressure=config.max_connections,
            http=HTTPModes.http1,  # our limits of connections and times are of HTTP/1
            http1_settings=HTTP1Settings(
                header_read_timeout=min(HEADER_TIMEOUT, config.body_timeout) * 1000
            ),
            **(config.tls.options() if config.tls else {}),
            log_level=LogLevels.error,
            log_dictconfig=logs.granian_config(config.log_format),
            respawn_failed_workers=True,
            workers_kill_timeout=config.stop_timeout,
        )
        self._config, self._sockets, self._ready = config, sockets, ready
        self._counts = mmap.mmap(-1, block_size(config.workers))
        self._filter = shared_filter.create(config.filter_memory) if config.filter_memory else -1
        self._builder = FilterBuilder(config.index, self._filter, config.log_format)
        self._loaded, self._loading = os.pipe()  # a byte from each worker that answers
        os.set_blocking(self._loaded, False)
        self._starting = config.workers
        self._shd: Any = None
        self._sso: Any = None
        self.main_loop_interrupt = MainLoop(self._supervise)
        self._main = os.getpid()

    def _init_shared_socket(self) -> None:
        """There is one for each worker."""

    def _spawn_worker(self, idx: int, target: Any, callback_loader: Any) -> WorkerProcess:  # type: ignore[override]
        holder: Any = SocketHolder
        self._shd = holder(self._sockets[idx].fileno(), False, listeners.BACKLOG)
        worker = super()._spawn_worker(idx, target, partial(callback_loader, idx))
        worker._watch = _nothing  # type: ignore[method-assign]
        return worker

    def _supervise(self) -> None:
        """Report readiness when all workers answer, and let Granian replace those that died."""
        if self._config.filter_memory:
            self._builder.keep()
        if self._starting:
            with suppress(BlockingIOError):
                self._starting -= len(os.read(self._loaded, self._starting))
            if not self._starting:
                self._ready()
                notify("READY=1")
        for worker in self.wrks:
            if not worker.interrupt_by_parent and worker.inner.exitcode is not None:
                logs.LOGGER.error("worker %d ended unexpectedly", worker.idx + 1)
                self.interrupt_children.append(worker.idx)
                self.main_loop_interrupt.set()

    def _reload(self, spawn_target: Any, target_loader: Any) -> None:
        """Replace the workers, on SIGHUP; the new ones read the TLS files again."""
        if self._config.tls is not None:
            try:
                self._config.tls.check()
                cert, key, least = self._config.tls.options().values()
                self.build_ssl_context(cert, key, None, least, None, [], False)
            except BadInput as error:
                self.reload_signal = False
                self.main_loop_interrupt.clear()
                logs.LOGGER.error("still serving with the old certificate: %s", error)
                return
        self._announce_stop()
        for idx, worker in enumerate(self.wrks):
            worker.terminate = partial(self._end_old, idx, worker)  # type: ignore[method-assign]
        super()._reload(spawn_target, target_loader)  # type: ignore[no-untyped-call]

    def _end_old(self, idx: int, old: WorkerProcess) -> None:
        """End a worker whose successor has the same socket; no connection reaches it then."""
        listeners.shut([self._sockets[idx]])
        time.sleep(DRAIN)
        WorkerProcess.terminate(old)  # type: ignore[no-untyped-call]
        old.inner.join(_LAST_ACCEPTED)
        listeners.reopen(self._sockets[idx])

    def _announce_stop(self) -> None:
        """Let the workers' answers ask clients to close their connections."""
        for worker in self.wrks:
            with suppress(ProcessLookupError):
                os.kill(worker.inner.pid, signal.SIGUSR1)

    def _stop_workers(self) -> None:
        notify("STOPPING=1")
        self._announce_stop()
        listeners.shut(self._sockets)
        time.sleep(DRAIN)
        super()._stop_workers()  # type: ignore[no-untyped-call]
        self._builder.stop()
        for listener in self._sockets:
            listener.close()

    def load(self, worker: int) -> Any:
        """Return the application of a worker; called in its process."""
        os.setpgid(0, 0)  # an interrupt from the terminal is for the main process alone
        # Granian adds the environment of the process to that of each request, where a variable
        # HTTP_ACCEPT would count as a header.
        for name in os.environ.keys() - set(_KEPT):
            del os.environ[name]
        shared = SharedFilter(self._filter, worker) if self._config.filter_memory else None
        live = LiveIndex(self._config.index, self._config.policy, shared)
        live.refresh()
        metrics = Metrics(self._counts, self._config.workers, worker)
        live.watch(partial(metrics.store_counts, live.crawls.write_counts), logs=worker == 0)
        Finalize(None, live.close, exitpriority=1)  # as a worker ends: atexit is not for them
        if worker == 0:
            BackgroundMerge(live).start()
        app = create_app(self._config, live, metrics)
        hot = app.wsgi_app
        assert isinstance(hot, HotRoutes)
        signal.signal(signal.SIGUSR1, lambda number, frame: hot.stop())
        threading.Thread(target=self._outlive, daemon=True).start()
        gc.collect()
        gc.freeze()
        os.write(self._loading, b".")
        hot.timeout.start()
        return AccessLog(hot) if self._config.access_log else hot

    def _outlive(self) -> None:
        """End this worker when the main process was killed."""
        while os.getppid() == self._main:
            time.sleep(_PARENT_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)


def _nothing() -> None:
    """Stand in for Granian's thread that waits for a worker."""
