"""Tells what the core's tuner finds, and keeps it for the next run.

The tuner is on rank 0, see tf_ops/negotiation/tuner.h. A thread of that rank
answers its one question, writes the log, and keeps what it has chosen.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from hvd_keras import _native
from hvd_keras._common import files, log
from hvd_keras._common.json_text import parsed, whole
from hvd_keras._common.version import package_version
from hvd_keras._rendezvous import Topology
from hvd_keras.config import Config, is_given
from hvd_keras.exceptions import ConfigError

_ASKED_SECONDS = 0.02  # between two looks, until the tuner has asked
_SECONDS = 0.5
_MOST_BYTES = 1 << 16  # of a file of the cache
_MOST_CYCLE_US = 10_000_000
_HEAD = (
    "time", "round", "fusion_threshold_bytes", "cycle_time_ms",
    "steps_per_second", "chosen",
)  # fmt: skip
_OFF = "none"

Settings = tuple[int, int]  # bytes, microseconds

_thread: _Listener | None = None
_begun_logs: set[str] = set()  # an elastic job goes on with its own


def options(config: Config, environ: Mapping[str, str]) -> Any:
    """Returns what the core's tuner may do; None: there is nothing to tune.

    Raises:
        ConfigError: HVD_AUTOTUNE_START makes no sense.
    """
    if not config.autotune or _keeps_all(environ):
        return None
    found = _native.core().TunerOptions()
    found.begin = _begin(config)
    found.keeps_fusion_threshold = is_given(environ, "fusion_threshold_bytes")
    found.keeps_cycle_time = is_given(environ, "cycle_time_ms")
    found.warmup_samples = config.autotune_warmup_samples
    found.steps_per_sample = config.autotune_steps_per_sample
    found.max_samples = config.autotune_max_samples
    return found


def _keeps_all(environ: Mapping[str, str]) -> bool:
    """Whether the user has set all that could be tuned."""
    fields = "fusion_threshold_bytes", "cycle_time_ms"
    return all(is_given(environ, field) for field in fields)


def _begin(config: Config) -> Settings:
    text = config.autotune_start
    if text is None:
        milliseconds = config.cycle_time_ms
        return config.fusion_threshold_bytes, int(milliseconds * 1000)
    try:
        threshold, cycle = text.split(",")
        begin = int(threshold), int(float(cycle) * 1000)
        whole(begin[0], 0)
        whole(begin[1], 0, _MOST_CYCLE_US)
    except (ValueError, OverflowError):
        raise ConfigError(
            "`HVD_AUTOTUNE_START` must be a fusion threshold in bytes, a comma "
            f"and a cycle time in ms, such as 1024,20. Received: {text!r}."
        ) from None
    return begin


def begin(topology: Topology, config: Config) -> None:
    """Listens to the tuner of the job that this rank has joined."""
    global _thread
    end(goes_on=True)
    if not config.autotune or topology.rank != 0:
        return
    if _keeps_all(os.environ):
        log.info(
            "autotune: the fusion threshold and the cycle time are set, so "
            "there is nothing to tune."
        )
        return
    _thread = _Listener(topology, config)
    _thread.start()


def end(*, goes_on: bool) -> None:
    """Writes what there is, while the core still runs; listens no more.

    Args:
        goes_on: Whether the job begins again with other members.
    """
    global _thread
    listener, _thread = _thread, None
    if listener is not None:
        listener.finish(tells=not goes_on)


class _Listener(threading.Thread):
    """Looks what the tuner does."""

    def __init__(self, topology: Topology, config: Config) -> None:
        super().__init__(name="hvd_autotune", daemon=True)
        self._topology, self._config = topology, config
        self._over = threading.Event()
        self._num_told = 0  # samples of this search
        self._look_answered = -1
        self._search = 1
        self._has_ended = False  # this search
        self._has_failed = False
        self._path: str | None = None  # of the cache
        self._begin_time = time.time()
        self._log = config.autotune_log
        if self._log is not None and self._log not in _begun_logs:
            _begun_logs.add(self._log)
            self._write([_HEAD], mode="w")

    def run(self) -> None:
        seconds = _ASKED_SECONDS
        while not self._over.wait(seconds):
            report = self._look()
            is_asking = report is None or report["look"] > self._look_answered
            seconds = _ASKED_SECONDS if is_asking else _SECONDS

    def finish(self, *, tells: bool) -> None:
        """Looks for the last time; perhaps tells that there is no answer."""
        self._over.set()
        if self is not threading.current_thread() and self.is_alive():
            self.join(_SECONDS * 4)
        report = self._look()
        if report is None or self._has_ended or not tells:
            return
        samples = report["samples"]
        log.info(
            f"autotune: the job has ended after {len(samples)} samples, before "
            "the search has; the next run begins anew."
            if samples
            else "autotune: nothing was tuned, for no steps were seen that "
            "reduce the same tensors again and again."
        )

    def _look(self) -> dict[str, Any] | None:
        report: dict[str, Any] | None = _native.core().tuning_report()
        if report is None:  # the job has ended
            return None
        try:
            if report["state"] == "asking":
                self._answer(report)
            if report["state"] not in ("looking", "asking"):
                self._tell(report)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning(f"autotune: no log and no cache: {error!r}")
        return report

    def _answer(self, report: dict[str, Any]) -> None:
        if report["look"] <= self._look_answered:
            return
        self._look_answered = report["look"]
        self._has_ended = False
        known, speed = None, 0.0
        try:
            self._path = self._path_for(report["signature"])
            known, speed = self._known()
        finally:
            _native.core().answer_tuner(report["look"], known, speed)
        if known is not None:
            self._has_ended = True
            log.info(
                f"autotune: goes on with what an earlier run has found, "
                f"{_words(known)}, of {self._path!r}."
            )

    def _tell(self, report: dict[str, Any]) -> None:
        samples = report["samples"]
        if report["search"] > self._search:
            self._search = report["search"]
            self._num_told, self._has_ended = 0, False
            log.info(
                "autotune: steps take another time, or are others: searches "
                "again."
            )
        is_done = report["state"] == "done"
        rows = [
            (
                f"{self._begin_time + seconds:.3f}",
                round_,
                *_shown(settings),
                f"{speed:.6g}",
                0,
            )
            for seconds, round_, settings, speed in (samples[self._num_told :])
        ]
        self._num_told = len(samples)
        self._write(rows, mode="a")
        if is_done and not self._has_ended:
            self._has_ended = True
            self._note_end(report)

    def _note_end(self, report: dict[str, Any]) -> None:
        chosen, samples = report["settings"], report["samples"]
        speeds = [one[3] for one in samples if one[2] == chosen]
        speed = sorted(speeds)[len(speeds) // 2] if speeds else 0.0
        before = samples[0][2] if samples else chosen
        row = (f"{time.time():.3f}", "end", *_shown(chosen), f"{speed:.6g}", 1)
        self._write([row], mode="a")
        if chosen == before:
            log.info(
                f"autotune: ended after {len(samples)} samples. Nothing was "
                f"faster by 3 % than {_words(chosen)}."
            )
        else:
            last = samples[-1][1]
            old = [one[3] for one in samples if one[1:3] == (last, before)]
            new = [one[3] for one in samples if one[1:3] == (last, chosen)]
            gain = sum(new) / sum(old) if old and new else 1.0
            log.info(
                f"autotune: ended after {len(samples)} samples with "
                f"{_words(chosen)}: {gain:.2f} times the steps a second of "
                f"{_words(before)}."
            )
        self._keep(chosen, speed)

    # ---- What earlier runs know ----

    def _path_for(self, signature: int) -> str | None:
        folder = self._config.autotune_cache
        if folder == _OFF:
            return None
        if folder is None:
            home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
            folder = os.path.join(home, "hvd_keras", "autotune")
        found = options(self._config, os.environ)
        key = [
            signature, self._topology.size, self._topology.cross_size,
            package_version(), found.begin, found.keeps_fusion_threshold,
            found.keeps_cycle_time,
        ]  # fmt: skip
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return os.path.join(os.path.expanduser(folder), f"{name}.json")

    def _known(self) -> tuple[Settings | None, float]:
        if self._path is None or not os.path.exists(self._path):
            return None, 0.0
        try:
            data = parsed(files.read_bounded(self._path, _MOST_BYTES) or b"")
            settings = (
                whole(data["fusion_threshold_bytes"], 0),
                whole(data["cycle_time_us"], 0, _MOST_CYCLE_US),
            )
            return settings, max(float(data["steps_per_second"]), 0.0)
        except (ValueError, LookupError, TypeError, OverflowError):
            log.warning(
                f"autotune: {self._path!r} makes no sense; it is written anew."
            )
            return None, 0.0

    def _keep(self, settings: Settings, speed: float) -> None:
        if self._path is None:
            return
        told = {
            "fusion_threshold_bytes": settings[0],
            "cycle_time_us": settings[1],
            "steps_per_second": speed,
        }
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            files.write(self._path, json.dumps(told).encode())
        except OSError as error:
            log.warning(f"autotune: the next run begins anew: {error}")

    def _write(self, rows: list[Any], mode: str) -> None:
        if self._log is None or not rows:
            return
        try:
            with open(self._log, mode, newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)
        except OSError as error:
            self._log = None
            log.warning(f"HVD_AUTOTUNE_LOG cannot be written: {error}")


def changes() -> list[dict[str, Any]]:
    """Returns the settings that the ranks have changed to, in order."""
    return [
        {
            "collective": number,
            "fusion_threshold_bytes": settings[0],
            "cycle_time_ms": settings[1] / 1000,
        }
        for number, settings in _native.core().tuning_changes()
    ]


def _shown(settings: Settings) -> tuple[int, float]:
    return settings[0], settings[1] / 1000


def _words(settings: Settings) -> str:
    return (
        f"a fusion threshold of {settings[0] / (1 << 20):g} MiB and a cycle "
        f"time of {settings[1] / 1000:g} ms"
    )
