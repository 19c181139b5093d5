"""Trains while ranks are killed and stopped, and counts what it costs.

    python benchmarks/chaos.py --minutes=30
    sudo python benchmarks/chaos.py --minutes=30 --hosts=2

A job of `--np` ranks trains by `hvd.elastic.fit`. Once in `--period` seconds
something happens to it; hvdrun starts others in place of lost ranks:

- `kill`: a rank gets SIGKILL; `rank 0`: the first one does; `two`: two at once;
  `reform`: another one, while the ranks form a new membership; `commit`: a rank
  in the midst of a commit; `stop`: a rank gets SIGSTOP.
- With `--hosts=2`, which needs root: `wire`: the process that sends between the
  hosts gets SIGKILL; `agent`: hvdrun on the second host does, and is started
  again; `cut`: the cable between the hosts is out for 4 s.

Before that the same job runs undisturbed on each number of ranks down to `--np`
- 2, which tells how long a step takes there.

How to read the result:

- `steps` are those that count: of a step that was undone and done again, one.
- `expected` is how many steps the quiet job would have made on as many ranks as
  were alive. A rank that is started again is alive once it waits to join: the
  import of TensorFlow does not count.
- `of its own steps` compares with this run alone: how many steps it made, of
  those that it would have made if no two memberships had a pause between them.
  How long a step takes is then the mean of this run, for each number of ranks.
  So a quiet run that was slower or faster changes nothing, and imports do not
  count.
- `samples`: at the end of each epoch every rank compares how often each row was
  seen with the number of the epoch; it must be equal for all rows.
- `loss`: how far the losses of an epoch are from those of a quiet job of `--np`
  ranks, at most; beside that, how far a quiet job with a rank less is.
- The table has for each kind: `again`, the seconds until a smaller membership
  has ended its first step; `undone`, how many steps were done again; `grown`,
  the longest time between two steps while lost ranks came back.

A step computes a little and sleeps `--step_ms`, as if an accelerator computed:
the ranks that start again would else take the cores of those that train. For
the same reason they import TensorFlow at the lowest priority, if this is root.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from _chaos_job import Job
from _held import held_by
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 4, "Ranks.", 2)
flags.DEFINE_float("minutes", 30.0, "Length of the disturbed run.", 0.5)
flags.DEFINE_float("period", 29.0, "Seconds between two disturbances.", 1.0)
flags.DEFINE_float("step_ms", 50.0, "Milliseconds that a step sleeps.")
flags.DEFINE_float("commit_seconds", 0.5, "Seconds between commits.")
flags.DEFINE_float("quiet_seconds", 40.0, "Length of each quiet run.")
flags.DEFINE_integer("seed", 1, "Decides on victims and moments.")

flags.DEFINE_integer("hosts", 1, "Hosts.", 1, 2)
flags.DEFINE_list(
    "kinds", None, "What may happen; given twice, it happens twice as often."
)

_KINDS = "kill,kill,stop,rank 0,two,reform,commit".split(",")
_KINDS_OF_HOSTS = [*_KINDS, "wire", "agent", "cut", "cut"]
_CUT_SECONDS = 4.0
_ROWS, _BATCH = 1920, 8


def _job(folder: Path, num_ranks: int, epochs: int, step_ms: float) -> Job:
    folder.mkdir()
    layout: tuple[int, ...] = (num_ranks,)
    if FLAGS.hosts == 2 and num_ranks > FLAGS.np // 2:
        layout = (FLAGS.np // 2, num_ranks - FLAGS.np // 2)
    return Job(
        folder,
        layout,
        str(epochs),
        str(step_ms),
        str(FLAGS.commit_seconds),
        str(num_ranks),
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
    job = _job(folder, num_ranks, epochs, step_ms)
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
    """Lets things happen to the job; returns what and when."""
    rng = random.Random(FLAGS.seed)
    kinds = FLAGS.kinds or (_KINDS if FLAGS.hosts == 1 else _KINDS_OF_HOSTS)
    left: list[str] = []
    done: list[dict[str, Any]] = []
    next_time = time.time() + FLAGS.period
    while time.time() < until and job.process.poll() is None:
        moment = next_time + rng.uniform(0, 0.5)
        while time.time() < moment and job.process.poll() is None:
            time.sleep(max(0.0, min(0.5, moment - time.time())))
            job.restart_hosts()
        next_time += FLAGS.period
        members = job.members()
        if not left:
            left = rng.sample(kinds, len(kinds))
        if len(members) < FLAGS.np:
            print(f"{len(members)} ranks only: nothing happens", flush=True)
            continue
        kind = left.pop()
        one: dict[str, Any] = {"kind": kind, "held": held_by(job.pid())}
        print(f"{kind} of {sorted(members)}", flush=True)
        one["time"], one["lost"] = _happen(job, kind, members, rng)
        done.append(one)
    return done


def _happen(
    job: Job, kind: str, members: dict[int, tuple[int, int]], rng: random.Random
) -> tuple[float, int]:
    """Returns when the last part of it happened, and how many ranks it took."""
    first, second = rng.sample(sorted(members), 2)
    if kind == "rank 0":
        first = 0
    host, pid = members[first]
    if kind in ("kill", "rank 0"):
        os.kill(pid, signal.SIGKILL)
    elif kind == "stop":
        os.kill(pid, signal.SIGSTOP)
    elif kind in ("two", "reform"):
        os.kill(pid, signal.SIGKILL)
        if kind == "reform":
            time.sleep(rng.uniform(0.002, 0.05 if FLAGS.hosts == 1 else 0.7))
        os.kill(members[second][1], signal.SIGKILL)
        return time.time(), 2
    elif kind == "commit":
        wish = job.wish_to_die(host, pid)
        while os.path.exists(f"/proc/{pid}/exe"):  # not once it is a zombie
            time.sleep(0.001)
        wish.unlink()
    elif kind == "wire":
        os.kill(rng.choice(job.wires()), signal.SIGKILL)
        return time.time(), 0
    else:
        if kind == "agent":
            job.kill_host()
        else:
            job.cut(_CUT_SECONDS)
        return time.time(), sum(host == 1 for host, _ in members.values())
    return time.time(), 1


def _alive(
    job: Job, disturbances: list[dict[str, Any]], begin: float, end: float
) -> list[tuple[float, float, int]]:
    """Returns intervals of time, and how many ranks were alive in each."""
    changes = [(one["time"], -one["lost"]) for one in disturbances]
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
    print(f"of its own steps: {100 * _of_own_steps(steps):.1f} %")
    print(f"epochs {len(losses)}, samples wrong in {len(bad)} of {len(epochs)}")
    print(
        f"loss apart from that of {FLAGS.np} quiet ranks by "
        f"{100 * apart:.2f} % at most, that of {FLAGS.np - 1} by "
        f"{100 * noise:.2f} %"
    )
    print(f"weights at the end: {len(ends)} different")
    _print_kinds(steps, disturbances)
    hvdruns = [one["held"] for one in disturbances]
    longest = _longest_lived(epochs)
    for name, values in (("hvdrun", hvdruns), ("oldest rank", longest)):
        for at in sorted({0, len(values) // 2, len(values) - 1}):
            print(f"{name} held (descriptors, MB): {values[at]}")


def _of_own_steps(steps: list[dict[str, Any]]) -> float:
    """Returns the steps made, by those that no pause would have allowed."""
    ends: dict[tuple[int, int], dict[str, Any]] = {}
    for step in steps:  # the first rank that ended a step
        ends.setdefault((step["membership"], step["iterations"]), step)
    seconds: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    pauses: dict[int, float] = defaultdict(float)
    made = 0
    for one, other in itertools.pairwise(ends[key] for key in sorted(ends)):
        size, took = other["size"], other["time"] - one["time"]
        made += other["iterations"] - one["iterations"]
        if one["membership"] == other["membership"]:
            seconds[size] += took
            counts[size] += 1
        else:
            pauses[size] += took
    possible = sum(
        counts[size] * (1 + pauses[size] / seconds[size]) for size in seconds
    )
    return made / possible


def _longest_lived(epochs: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Returns what the rank that lived for most epochs held in each."""
    held = defaultdict(list)
    for row in epochs:
        held[row["member"]].append(tuple(row["held"]))
    return max(held.values(), key=len, default=[])


def _apart(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest difference of the losses of an epoch, as a share."""
    return max(abs(one[e] / other[e] - 1) for e in set(one) & set(other))


def _print_kinds(
    steps: list[dict[str, Any]], disturbances: list[dict[str, Any]]
) -> None:
    """Prints what each kind of disturbance has cost."""
    found = defaultdict(list)
    ends = [one["time"] for one in disturbances[1:]] + [np.inf]
    for one, end in zip(disturbances, ends, strict=True):
        before = [s for s in steps if s["time"] <= one["time"]]
        after = [s for s in steps if one["time"] < s["time"] < end]
        old = before[-1]["membership"]
        done = max(s["iterations"] for s in before)
        newer = [s for s in after if s["membership"] > old]
        if not newer:
            print(f"no step followed a {one['kind']}")
            continue
        again = newer[0]
        undone = done - again["iterations"] + 1
        times = [s["time"] for s in newer]
        grown = float(np.diff(times).max()) if times[1:] else 0.0
        found[one["kind"]].append((again["time"] - one["time"], undone, grown))
    rows = [each for kind in found.values() for each in kind]
    for name, values in [*sorted(found.items()), ("all", rows)]:
        again, undone, grown = np.array(values).T
        print(
            f"{name:8} {len(values):3}: again after {np.median(again):.2f} s, "
            f"at most {again.max():.2f}; undone {np.median(undone):.0f} steps, "
            f"at most {undone.max():.0f}; grown {np.median(grown):.2f} s, at "
            f"most {grown.max():.2f}"
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
    job = _job(own, FLAGS.np, epochs, FLAGS.step_ms)
    while len(job.members()) < FLAGS.np and job.process.poll() is None:
        time.sleep(0.2)
    disturbances = _disturb(job, time.time() + seconds)
    status = job.wait(3 * seconds)
    print(f"exit status {status}; records in {own}")
    _report(job, disturbances, quiet, curves)


if __name__ == "__main__":
    app.run(main)
