"""The callback that logs what communication costs, and who is late."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras import _native, basics
from hvd_keras._common import log
from hvd_keras._job import startup
from hvd_keras._records.links import slow_sender
from hvd_keras.callbacks._epoch_clock import Epoch, EpochMeter

# A rank is late in most steps if it is the last one this often ...
_MOST = 0.5
# ... and the others wait for it for this share of the time.
_NOTABLE = 0.05
# A slow link is worth a word if collectives ran for this share of the time.
_NOTABLE_LINK = 0.2

_LastRanks = np.ndarray[Any, np.dtype[np.int64]]  # [rank, (times, ns)]


class CommunicationLogger(EpochMeter):
    """Adds what communication costs to the logs of epochs.

    `History` and the callbacks after this one see the values, so put it before
    `CSVLogger`, `TensorBoard` and those of MLflow or Weights & Biases. They are
    the same on all ranks:

    - `hvd/wait_ms`: milliseconds a step in which collectives waited for other
      ranks, on the rank that waited most.
    - `hvd/allreduce_ms`: milliseconds a step in which collectives of any kind
      ran, on the rank with the most.
    - `hvd/megabytes_per_s`: 10^6 bytes of their inputs in a second of that
      time, on the slowest rank; 0 without any.
    - `hvd/efficiency`: share of the time, from 0 to 1, in which no collective
      waited or ran; the mean over the ranks. What overlaps with computing
      counts as lost, so the scaling efficiency is this or more.
    - `hvd/straggler_rank`: the rank for which the others waited longest; -1 if
      they waited for none.

    Rank 0 also logs warnings:

    - once in `report_seconds`, while a rank is the last one in most collectives
      and the others wait for it for over 5 % of the time;
    - at the end of an epoch, if a host sends slowly and collectives ran for
      over 20 % of the time.

    An epoch is measured from its first batch to its last, without validation.
    All ranks have the callback, or none.

    Args:
        report_seconds: Seconds between two warnings of a rank; 0: no
            warnings.

    Raises:
        ValueError: `report_seconds` is negative.

    Example:

    >>> communication = hvd.callbacks.CommunicationLogger()
    >>> board = keras.callbacks.TensorBoard("logs")
    >>> model.fit(dataset, callbacks=[communication, board])
    """

    def __init__(self, report_seconds: float = 60.0) -> None:
        super().__init__()
        if not report_seconds >= 0.0:
            raise ValueError(
                "`report_seconds` must be 0 or more. Received: "
                f"report_seconds={report_seconds}."
            )
        self._report_seconds = report_seconds
        self._last_ranks: _LastRanks | None = None  # when the epoch began
        self._reported = 0.0
        self._reported_ranks: _LastRanks | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._reported = time.monotonic()
        self._reported_ranks = _last_ranks()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_begin(epoch, logs)
        self._last_ranks = _last_ranks()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._report_seconds and basics.rank() == 0:
            now = time.monotonic()
            if now - self._reported >= self._report_seconds:
                self._report(now)

    def log_measured(self, measured: Epoch, logs: dict[str, Any]) -> None:
        straggler = -1
        if basics.rank() == 0 and self._last_ranks is not None:
            late = (_last_ranks() - self._last_ranks)[:, 1]
            if late.any():
                straggler = int(late.argmax())
        counts = measured.counts
        row = np.array(
            [
                measured.seconds,
                measured.steps,
                max(0, counts["pending_ns"] - counts["running_ns"]) / 1e9,
                counts["running_ns"] / 1e9,
                counts["num_bytes"],
                straggler,
            ],
            np.float64,
        )
        (rows,) = _native.core().allgather(
            "CommunicationLogger", [row[np.newaxis]]
        )
        seconds, steps, waiting, running, num_bytes, stragglers = rows.T
        logs["hvd/wait_ms"] = float((1e3 * waiting / steps).max())
        logs["hvd/allreduce_ms"] = float((1e3 * running / steps).max())
        speeds = num_bytes / np.where(running > 0.0, running, np.inf)
        logs["hvd/megabytes_per_s"] = float(speeds.min()) / 1e6
        self._report_link(rows.T[[0, 3]], float(speeds.min()))
        busy = np.minimum((waiting + running) / seconds, 1.0)
        logs["hvd/efficiency"] = float(1.0 - busy.mean())
        logs["hvd/straggler_rank"] = float(stragglers[0])

    def _report_link(self, rows: np.ndarray[Any, Any], speed: float) -> None:
        """Warns of a host that sends slowly, on rank 0."""
        network = startup.network()
        if not self._report_seconds or network is None or basics.rank() != 0:
            return
        seconds, running = rows
        text = describe_slow_link(
            network.layout.ranks, network.host_names, seconds, running, speed
        )
        if text:
            log.notice(text)

    def _report(self, now: float) -> None:
        seconds = now - self._reported
        ranks = _last_ranks()
        before = self._reported_ranks
        self._reported, self._reported_ranks = now, ranks
        if before is None or before.shape != ranks.shape:
            return  # another job
        text = describe_straggler(ranks - before, seconds)
        if text:
            log.notice(text)


def describe_straggler(last_ranks: _LastRanks, seconds: float) -> str:
    """Says which rank was late in most collectives; empty if none was.

    Args:
        last_ranks: `[rank, (times, ns)]`: how often each rank was the last
            one, and how long the first one waited for it, in these seconds.
        seconds: The time.
    """
    times, late_ns = last_ranks.T
    total = int(times.sum())
    if total == 0:
        return ""
    rank = int(times.argmax())
    share = times[rank] / total
    waited = late_ns[rank] / 1e9 / seconds
    if share < _MOST or waited < _NOTABLE:
        return ""
    late_ms = late_ns[rank] / 1e6 / times[rank]
    return (
        f"rank {rank} came last to {share:.0%} of the {total} collectives of "
        f"the last {seconds:.0f} s, by {late_ms:.1f} ms on average. The first "
        f"rank waited for it for {waited:.0%} of the time: look at its input, "
        "and at other programs on its host."
    )


def describe_slow_link(
    ranks: Sequence[Sequence[int]],
    names: Sequence[str],
    seconds: np.ndarray[Any, Any],
    running: np.ndarray[Any, Any],
    speed: float,
) -> str:
    """Says which host sends slowly; empty if none does.

    Args:
        ranks: The ranks of each host.
        names: The name of each host.
        seconds: How long each rank was measured.
        running: The seconds of that time in which collectives ran.
        speed: Bytes of their inputs in a second.
    """
    own = {
        str(host): float(running[list(members)].min())
        for host, members in enumerate(ranks)
    }
    slow = slow_sender(own)
    share = float((running / seconds).max())
    if slow is None or share < _NOTABLE_LINK:
        return ""
    host = int(slow)
    members = ", ".join(map(str, ranks[host]))
    return (
        f"host {names[host]} (rank{'s' * (len(ranks[host]) > 1)} {members}) "
        f"sends slowly: collectives ran for {share:.0%} of the epoch, at "
        f"{speed / 1e6:.3g} MB/s, and the other hosts waited for its data. "
        "Look at its link (`hvdrun --check -H ...`)."
    )


def _last_ranks() -> _LastRanks:
    return np.array(_native.core().last_ranks(), np.int64).reshape(-1, 2)
