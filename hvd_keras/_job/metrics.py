"""Serves this rank's counters to Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._common.version import package_version
from hvd_keras._rendezvous import Topology, interfaces
from hvd_keras.config import Config

_ADDRESS = "127.0.0.1"
# Name, counter of `hvd.stats()`, what it counts.
_COUNTERS = (
    ("hvd_requests", "num_requests", "Tensors or groups submitted."),
    ("hvd_collectives", "num_collectives", "Collectives run, after fusion."),
    ("hvd_bytes", "num_bytes", "Bytes of the inputs of collectives."),
    ("hvd_cache_hits", "num_cache_hits", "Requests known to all ranks."),
    ("hvd_cache_misses", "num_cache_misses", "Requests agreed on in full."),
)
_server: tuple[Any, threading.Thread] | None = None


def begin(topology: Topology, config: Config) -> None:
    """Starts the server of this rank, if the user has chosen a port.

    What prevents it is a warning: training is worth more than its figures.
    """
    global _server
    end()
    if config.metrics_port is None:
        return
    try:
        import prometheus_client
    except ModuleNotFoundError:
        log.warning(
            "HVD_METRICS_PORT needs prometheus_client: `pip install "
            "'.[metrics]'` in a clone of hvd_keras."
        )
        return
    port = config.metrics_port + topology.local_rank
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(topology, config))
    try:
        _server = prometheus_client.start_http_server(
            port, _ADDRESS, registry=registry
        )
    except (OSError, OverflowError) as error:
        log.warning(
            f"HVD_METRICS_PORT={config.metrics_port}: port {port} cannot be "
            f"used: {error}"
        )


def end() -> None:
    """Stops the server."""
    global _server
    if _server is None:
        return
    server, thread = _server
    _server = None
    server.shutdown()
    server.server_close()
    thread.join()


class _Collector:
    """Reads the engine's counters when somebody asks."""

    def __init__(self, topology: Topology, config: Config) -> None:
        self._rank = str(topology.rank)
        self._host = config.hostname or interfaces.host_name()
        self._size = topology.size

    def describe(self) -> list[Any]:
        """Says that the metrics are not known yet."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields the metrics."""
        from prometheus_client import core as metrics

        core = _native.core()
        # The job may end at any time.
        with contextlib.suppress(Exception):
            stats = core.stats()
            labels = {"rank": self._rank, "host": self._host}

            def counter(name: str, text: str, value: float) -> Any:
                family = metrics.CounterMetricFamily(
                    name, text, labels=[*labels]
                )
                family.add_metric([*labels.values()], value)
                return family

            info = metrics.InfoMetricFamily("hvd", "The job.", labels=[*labels])
            about = {"version": package_version(), "size": str(self._size)}
            info.add_metric([*labels.values()], about)
            yield info
            for name, key, text in _COUNTERS:
                yield counter(name, text, stats[key])
            running = stats["running_ns"]
            waiting = max(0, stats["pending_ns"] - running)
            yield counter(
                "hvd_running_seconds",
                "Time in which a collective ran.",
                running / 1e9,
            )
            yield counter(
                "hvd_waiting_seconds",
                "Time in which collectives waited for other ranks.",
                waiting / 1e9,
            )
            pending = metrics.GaugeMetricFamily(
                "hvd_pending_requests", "Requests in flight.", labels=[*labels]
            )
            pending.add_metric([*labels.values()], core.num_pending())
            yield pending
            if self._rank == "0":
                yield from self._last_ranks(core.last_ranks())

    def _last_ranks(self, ranks: list[tuple[int, int]]) -> Iterator[Any]:
        from prometheus_client import core as metrics

        last = metrics.CounterMetricFamily(
            "hvd_last",
            "Collectives to which this rank came last; rank 0 knows.",
            labels=["rank"],
        )
        late = metrics.CounterMetricFamily(
            "hvd_late_seconds",
            "Time that the first rank waited for this one, the last; rank 0 "
            "knows.",
            labels=["rank"],
        )
        for rank, (times, late_ns) in enumerate(ranks):
            last.add_metric([str(rank)], times)
            late.add_metric([str(rank)], late_ns / 1e9)
        yield last
        yield late
