"""Metrics for Prometheus, and the health of a site, in a process of their own.

All numbers are read from the site's own files, because the process of a client ends after each
message. No label of a metric comes from a server. The process ends with the SuperNode that started
it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flower_fedclust.site.app import Site
from flower_fedclust.site.budget import spent
from flower_fedclust.site.ledger import LedgerError
from flower_fedclust.site.policy import MEGABYTE, SiteSettings

#: Message for an operator who has not installed the package for metrics.
MISSING = (
    "site.toml has a table [metrics]; pip install 'flower-fedclust[metrics]', or remove the table."
)

#: The events of the audit log, and the reasons of refusals, that have labels of their own. All others are labeled
#: "other".
EVENTS = ("answered", "repeated", "refused", "failed", "result", "approved", "stopped")
REASONS = ("policy", "budget", "limits", "approval", "stopped", "format")

#: The seconds and the megabytes of an answer are rounded up to one of these, because exact numbers could reveal more
#: about the rows.
SECONDS, MEGABYTES = (1, 10, 100, 1000, 10_000), (256, 1024, 4096, 16_384, 65_536)


class Metrics:
    """The metrics of a site: counts of the events in its audit log, and the present state of ledger and studies."""

    def __init__(self, settings: SiteSettings) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

        self.site = Site(settings)
        self._log: BinaryIO | None = None
        self._lock = threading.Lock()
        registry = CollectorRegistry()
        self.events = Counter(
            "fedclust_messages", "Lines of the audit log", ["event"], registry=registry
        )
        self.refusals = Counter(
            "fedclust_refusals", "Messages that were refused", ["reason"], registry=registry
        )
        for event in EVENTS:
            self.events.labels(event)
        for reason in REASONS:
            self.refusals.labels(reason)
        self.seconds = Histogram(
            "fedclust_seconds", "Time of an answer", registry=registry, buckets=SECONDS
        )
        sizes = [size * MEGABYTE for size in MEGABYTES]
        self.memory = Histogram(
            "fedclust_memory_bytes", "Most memory of an answer", registry=registry, buckets=sizes
        )
        self.left = Gauge(
            "fedclust_epsilon_left",
            "Epsilon that the policy leaves for more runs",
            registry=registry,
        )
        self.waiting = Gauge(
            "fedclust_studies_waiting", "Studies that wait for approval", registry=registry
        )
        self.healthy = Gauge("fedclust_healthy", "1 if the site can answer", registry=registry)
        self._page = make_wsgi_app(registry)

    def update(self) -> str:
        """Read what is new; return "" if the site can answer, or else one word about what is wrong.

        The new lines of the audit log are counted, and then the table, the studies and the ledger
        are checked. "table" means that the table cannot be read; "files" means that the site's own
        files cannot be read, or disagree.
        """
        with self._lock:
            for line in self._new_lines():
                self._count(line)
            wrong = ""
            try:
                if (
                    not os.access(self.site.settings.data, os.R_OK)
                    and "://" not in self.site.settings.data
                ):
                    wrong = "table"
                self.waiting.set(
                    sum(
                        study.state == "waiting" and not study.is_over()
                        for study in self.site.studies.read()
                    )
                )
                total = spent(self._entries(), self.site.data_set)
                self.left.set(max(0.0, self.site.settings.policy.epsilon - total.epsilon))
            except (ValueError, OSError):
                wrong = "files"
            self.healthy.set(not wrong)
            return wrong

    def _entries(self) -> list[dict[str, Any]]:
        """Return the ledger's entries, if the ledger and the kept answers agree.

        They are compared a second time if they differ, because an answer may be written at this
        moment.
        """
        with suppress(LedgerError):
            self.site.kept.check(self.site.ledger.read())
            return self.site.ledger.entries
        self.site.kept.check(self.site.ledger.read())
        return self.site.ledger.entries

    def _new_lines(self) -> Iterable[bytes]:
        """Yield the new lines of the audit log, also if the log was replaced in between."""
        path = self.site.folder / "audit.jsonl"
        while True:
            if self._log is None and path.exists():
                self._log = path.open("rb")
            if self._log is None:
                return
            while (line := self._log.readline()).endswith(b"\n"):
                yield line
            self._log.seek(-len(line), os.SEEK_CUR)  # another process is still writing this line
            if path.exists() and os.path.samestat(os.fstat(self._log.fileno()), path.stat()):
                return
            self.close()

    def close(self) -> None:
        """Close the audit log. The next update opens it again, and counts from its first line."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _count(self, line: bytes) -> None:
        """Count one line of the audit log."""
        try:
            entry = json.loads(line)
            event, kind = entry["event"], entry.get("kind")
            seconds, memory = entry.get("seconds"), entry.get("memory_mb")
        except (ValueError, TypeError, KeyError, AttributeError):
            event, kind, seconds, memory = "other", None, None, None
        self.events.labels(event if event in EVENTS else "other").inc()
        if event == "refused":
            self.refusals.labels(kind if kind in REASONS else "other").inc()
        if seconds is not None:
            self.seconds.observe(_up(seconds, SECONDS))
        if memory is not None:
            self.memory.observe(_up(memory, MEGABYTES) * MEGABYTE)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request, as WSGI."""
        path, wrong = environ.get("PATH_INFO"), self.update()
        if path == "/metrics":
            return self._page(environ, start_response)  # type: ignore[no-any-return]
        status = (
            "404 Not Found"
            if path != "/health"
            else "503 Service Unavailable"
            if wrong
            else "200 OK"
        )
        start_response(status, [("Content-Type", "text/plain")])
        return [f"{wrong or 'ok'}\n".encode() if path == "/health" else b""]


def _up(value: float, ends: Sequence[int]) -> int:
    """Return the smallest of ``ends`` that is not below a value; the last one if all are."""
    return next((end for end in ends if value <= end), ends[-1])


class _Quiet(WSGIRequestHandler):
    """Answers requests without writing a log."""

    timeout = 10

    def log_message(self, *_: object) -> None:
        pass


def serve(site_toml: str, parent: int) -> None:
    """Serve until the process ``parent``, the SuperNode, has ended."""
    from prometheus_client.exposition import ThreadingWSGIServer

    settings = SiteSettings.from_toml(site_toml)
    assert settings.metrics is not None
    address, port = settings.metrics.address, settings.metrics.port
    with make_server(address, port, Metrics(settings), ThreadingWSGIServer, _Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:
            time.sleep(1)


def start_beside(site_toml: Path) -> None:
    """Start serving metrics in a process of its own; this process then becomes the SuperNode."""
    if find_spec("prometheus_client") is None:
        raise ImportError(MISSING)
    if os.name != "posix":  # elsewhere a process does not notice the end of its parent
        raise ValueError(
            "site.toml has a table [metrics], which this system does not support; remove the table."
        )
    command = [sys.executable, "-P", "-m", __name__, str(site_toml.absolute()), str(os.getpid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
