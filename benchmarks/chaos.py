"""Trains while ranks are killed and stopped, and counts what it costs.

    python benchmarks/chaos.py --minutes=30

A job of `--np` ranks trains by `hvd.elastic.fit`. Once in `--period` seconds a
rank, or two, gets SIGKILL or SIGSTOP; hvdrun starts others. Before that the
same job runs undisturbed on each number of ranks down to `--np` - 2, which
tells how long a step takes there.

How to read the result:

- `steps` are those that count: of a step that was undone and done again, one.
- `expected` is how many steps the quiet job would have made on as many ranks as
  were alive. A rank that is started again is alive once it waits to join: the
  import of TensorFlow does not count.
- `samples`: at the end of each epoch every rank compares how often each row was
  seen with the number of the epoch; it must be equal for all rows.
- `loss`: how far the losses of an epoch are from those of a quiet job of `--np`
  ranks, at most; beside that, how far a quiet job with a rank less is.

A step computes a little and sleeps `--step_ms`, as if an accelerator computed:
the ranks that start again would else take the cores of those that train.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 4, "Ranks.", 2)
flags.DEFINE_float("minutes", 30.0, "Length of the disturbed run.", 0.5)
flags.DEFINE_float("period", 29.0, "Seconds between two disturbances.", 1.0)
flags.DEFINE_float("step_ms", 50.0, "Milliseconds that a step sleeps.")
flags.DEFINE_float("commit_seconds", 0.5, "Seconds between commits.")
flags.DEFINE_float("quiet_seconds", 40.0, "Length of each quiet run.")
flags.DEFINE_integer("seed", 1, "Decides on victims and moments.")

_RANK = str(Path(__file__).with_name("_chaos_rank.py"))
_ROOT = str(Path(__file__).parents[1])
_ROWS, _BATCH = 1920, 8


class Job:
    """A running job, and what hvdrun has said when."""

    def __init__(
        self, folder: Path, num_ranks: int, epochs: int, step_ms: float
    ) -> None:
        self.folder = folder
        self.lines: list[tuple[float, str]] = []
        environ = {**os.environ, "PYTHONPATH": _ROOT}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "hvd_keras.run", "-np", str(num_ranks)),
                *("--min-np", "1", "--max-np", str(num_ranks)),
                *("--max-restarts", "100000", sys.executable, _RANK),
                *(str(folder), str(epochs), str(step_ms)),
                str(FLAGS.commit_seconds),
            ],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with (self.folder / "hvdrun.log").open("w") as log:
            for line in self.process.stderr:
                self.lines.append((time.time(), line.rstrip()))
                log.write(f"{time.time():.3f} {line}")
                log.flush()

    def members(self) -> dict[int, int]:
        """Returns the pids of the processes that train now, by rank."""
        found: dict[int, tuple[int, int]] = {}
        for path in self.folder.glob("rank_*.jsonl"):
            pid = int(path.stem.partition("_")[2])
            if not os.path.exists(f"/proc/{pid}/stat"):
                continue
            last = _last_line(path)
            if last is not None and last["kind"] == "step":
                known = found.get(last["rank"], (-1, 0))
                found[last["rank"]] = max(known, (last["membership"], pid))
        newest = max((one for one, _ in found.values()), default=0)
        return {r: pid for r, (m, pid) in found.items() if m == newest}

    def rows(self) -> list[dict[str, Any]]:
        """Returns all that the ranks have written, in order of time."""
        found = []
        for path in self.folder.glob("rank_*.jsonl"):
            pid = int(path.stem.partition("_")[2])
            for line in path.read_text().splitlines():
                try:
                    found.append({**json.loads(line), "pid": pid})
                except ValueError:  # cut off by a kill
                    continue
        return sorted(found, key=lambda row: row.get("time", np.inf))

    def wait(self, seconds: float) -> int:
        """Waits for the end; returns the exit status."""
        try:
            status = self.process.wait(seconds)
        finally:
            self.process.kill()
            self._thread.join()
        return status


def _last_line(path: Path) -> dict[str, Any] | None:
    lines = path.read_text().splitlines()
    for line in reversed(lines[-2:]):
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        return found
    return None


def _held(pid: int) -> tuple[float, int]:
    """Memory in MB and descriptors of a process."""
    with open(f"/proc/{pid}/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(
        os.listdir(f"/proc/{pid}/fd")
    )


def _steps_of(num_ranks: int) -> int:
    return -(-_ROWS // (_BATCH * num_ranks))


def _quiet(num_ranks: int, folder: Path) -> float:
    """Returns the seconds of a step of an undisturbed job."""
    num_steps = FLAGS.quiet_seconds * 1e3 / FLAGS.step_ms
    epochs = max(2, int(num_steps / _steps_of(num_ranks)))
    rows = _run(num_ranks, folder, epochs, FLAGS.step_ms)
    steps = [r for r in rows if r["kind"] == "step" and r["rank"] == 0]
    skipped = _steps_of(num_ranks)  # the first epoch is compiled in
    first, last = steps[skipped], steps[-1]
    seconds: float = last["time"] - first["time"]
    return seconds / (last["iterations"] - first["iterations"])


def _run(
    num_ranks: int, folder: Path, epochs: int, step_ms: float
) -> list[dict[str, Any]]:
    folder.mkdir()
    job = Job(folder, num_ranks, epochs, step_ms)
    if job.wait(3600) != 0:
        raise SystemExit(f"the quiet run failed: {folder}/hvdrun.log")
    return job.rows()


def _losses(rows: list[dict[str, Any]]) -> dict[int, float]:
    return {
        row["epoch"]: row["loss"]
        for row in rows
        if row["kind"] == "epoch" and row["rank"] == 0
    }


def _disturb(job: Job, until: float) -> list[dict[str, Any]]:
    """Kills and stops ranks; returns what it has done."""
    rng = random.Random(FLAGS.seed)
    done: list[dict[str, Any]] = []
    next_time = time.time() + FLAGS.period
    while time.time() < until and job.process.poll() is None:
        time.sleep(max(0.0, next_time + rng.uniform(0, 0.5) - time.time()))
        next_time += FLAGS.period
        members = job.members()
        if not members:
            continue
        kind = rng.choice(("kill", "kill", "stop", "kill rank 0", "kill two"))
        ranks = [rng.choice(sorted(members))]
        if kind == "kill rank 0":
            ranks = [min(members)]
        if kind == "kill two" and len(members) > 2:
            ranks = rng.sample(sorted(members), 2)
        number = signal.SIGSTOP if kind == "stop" else signal.SIGKILL
        for rank in ranks:
            try:
                os.kill(members[rank], number)
            except ProcessLookupError:
                continue
        done.append(
            {
                "time": time.time(),
                "kind": kind,
                "pids": [members[rank] for rank in ranks],
                "held": _held(job.process.pid),
            }
        )
        print(f"{kind} {ranks} of {sorted(members)}", flush=True)
    return done


def _alive(
    job: Job, disturbances: list[dict[str, Any]], begin: float, end: float
) -> list[tuple[float, float, int]]:
    """Returns intervals of time, and how many ranks were alive in each."""
    changes: list[tuple[float, int]] = []
    for one in disturbances:
        changes.append((one["time"], -len(one["pids"])))
    for at, line in job.lines:
        if re.search(r"member \d+ waits to join", line):
            changes.append((at, 1))
    spans, alive, last = [], FLAGS.np, begin
    for at, change in sorted(changes):
        if at < begin:
            continue
        spans.append((last, min(at, end), alive))
        alive, last = alive + change, min(at, end)
    spans.append((last, end, alive))
    return spans


def _report(
    job: Job,
    disturbances: list[dict[str, Any]],
    quiet: dict[int, float],
    curves: list[dict[int, float]],
) -> None:
    rows = job.rows()
    steps = [row for row in rows if row["kind"] == "step"]
    begin = next(
        s["time"] for s in steps if s["iterations"] > _steps_of(FLAGS.np)
    )
    end = steps[-1]["time"]
    first = next(s for s in steps if s["time"] >= begin)
    num_steps = steps[-1]["iterations"] - first["iterations"]
    expected = 0.0
    for since, until, alive in _alive(job, disturbances, begin, end):
        known = min(max(alive, min(quiet)), max(quiet))
        expected += max(0.0, until - since) / quiet[known]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    bad = [
        row
        for row in epochs
        if not row["fewest"] == row["most"] == row["epoch"] + 1
    ]
    losses = _losses(rows)
    apart, noise = (_apart(one, curves[0]) for one in (losses, curves[1]))
    ends = {row["digest"] for row in rows if row["kind"] == "end"}
    memberships = {row["membership"] for row in steps}
    print(f"disturbances {len(disturbances)}, memberships {len(memberships)}")
    print(
        f"steps {num_steps} of {expected:.0f} expected in {end - begin:.0f} s: "
        f"{100 * num_steps / expected:.1f} %"
    )
    print(f"epochs {len(losses)}, samples wrong in {len(bad)} of {len(epochs)}")
    print(
        f"loss apart from that of {FLAGS.np} quiet ranks by "
        f"{100 * apart:.2f} % at most, that of {FLAGS.np - 1} by "
        f"{100 * noise:.2f} %"
    )
    print(f"weights at the end: {len(ends)} different")
    _print_gaps(steps, disturbances)
    held = [one["held"] for one in disturbances]
    if held:
        print(f"hvdrun held at first {held[0]}, at last {held[-1]} (MB, fds)")


def _apart(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest difference of the losses of an epoch, as a share."""
    return max(abs(one[e] / other[e] - 1) for e in set(one) & set(other))


def _print_gaps(
    steps: list[dict[str, Any]], disturbances: list[dict[str, Any]]
) -> None:
    """Prints how long no step ended after each disturbance."""
    times = np.array([row["time"] for row in steps])
    gaps = []
    for one in disturbances:
        after = times[(times > one["time"]) & (times < one["time"] + 20)]
        if len(after) > 1:
            gaps.append(float(np.diff(np.r_[one["time"], after]).max()))
    if gaps:
        print(
            f"longest pause after a disturbance: median {np.median(gaps):.2f} "
            f"s, maximum {max(gaps):.2f} s"
        )


def main(argv: list[str]) -> None:
    """Runs quiet jobs, then a disturbed one, and compares them."""
    del argv
    folder = Path(tempfile.mkdtemp(prefix="hvd-chaos-"))
    quiet = {}
    for num_ranks in range(FLAGS.np, max(0, FLAGS.np - 3), -1):
        quiet[num_ranks] = _quiet(num_ranks, folder / f"quiet_{num_ranks}")
        print(
            f"quiet, {num_ranks} ranks: {1e3 * quiet[num_ranks]:.1f} ms a step",
            flush=True,
        )
    seconds = 60 * FLAGS.minutes
    epochs = int(seconds / quiet[FLAGS.np] / _steps_of(FLAGS.np))
    curves = [
        _losses(_run(num_ranks, folder / f"curve_{num_ranks}", epochs, 0.0))
        for num_ranks in (FLAGS.np, FLAGS.np - 1)
    ]
    own = folder / "chaos"
    own.mkdir()
    job = Job(own, FLAGS.np, epochs, FLAGS.step_ms)
    while not job.members() and job.process.poll() is None:
        time.sleep(0.2)
    disturbances = _disturb(job, time.time() + seconds)
    status = job.wait(3 * seconds)
    print(f"exit status {status}; records in {own}")
    _report(job, disturbances, quiet, curves)


if __name__ == "__main__":
    app.run(main)
