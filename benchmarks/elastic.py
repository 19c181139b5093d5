"""Kills ranks of an elastic job at random moments; measures the way back.

    python benchmarks/elastic.py --np=4 --kills=20

It prints the time from SIGKILL to the first finished allreduce of the smaller
job on all survivors, and what hvdrun and a rank that is never killed hold at
the beginning and at the end: memory and descriptors.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hosts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from _held import held_by
from elastic_jobs import (  # type: ignore[import-not-found]
    ElasticJob,
    Place,
    kill,
)


def _generation_of(job: ElasticJob) -> int:
    return max(place.generation for place in job.places.values())


def _survive(
    job: ElasticJob, victims: list[Place], ranks: list[Place]
) -> float:
    """Kills victims; returns the seconds until all others go on."""
    time.sleep(random.uniform(0.0, 0.2))
    for victim in victims:
        began = time.monotonic()
        kill(victim)
        if victim is not victims[-1]:  # while the others meet again
            time.sleep(random.uniform(0.0, 0.05))
    pids = {one.pid for one in victims}
    left = {one.pid for one in ranks} - pids
    generation = _generation_of(job)
    while True:
        found = [
            p
            for p in job.places.values()
            if p.pid in left and p.generation > generation
        ]
        if len(found) == len(left) and all(
            p.size == len(left) and p.generation == found[0].generation
            for p in found
        ):
            return max(place.seconds for place in found) - began
        if time.monotonic() > began + 30:
            raise SystemExit(
                f"the survivors did not go on:\n{job.text[-4000:]}"
            )
        job.read(0.05)


def main() -> None:
    """Runs the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--np", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="never kill the last of the first ranks",
    )
    options = parser.parse_args()
    seconds: list[float] = []
    held: list[tuple[tuple[int, float], ...]] = []  # hvdrun, the kept rank
    with (
        tempfile.TemporaryDirectory() as folder,
        ElasticJob(
            Path(folder), f"-np={options.np}", "--min-np=1",
            f"--max-restarts={2 * options.kills}", "--restart-delay=0",
        ) as job,
    ):  # fmt: skip
        job.wait_for_generation(1, options.np)
        kept = job.places[options.np - 1].pid

        def note() -> None:
            held.append(
                (held_by(job.pid), held_by(kept if options.keep else 1))
            )

        for number in range(options.kills):
            ranks = job.wait_for_size(options.np)
            note()
            ranks.sort(key=lambda place: place.rank)
            mortal = [r for r in ranks if not options.keep or r.pid != kept]
            victims = random.sample(mortal, 2 if number % 5 == 4 else 1)
            if number % 4 == 0:
                victims = mortal[:1]
            seconds.append(_survive(job, victims, ranks))
        job.wait_for_size(options.np)
        note()
        num_generations = _generation_of(job)
        if job.end():
            raise SystemExit(job.text)
    milliseconds = sorted(one * 1e3 for one in seconds)
    print(
        f"{len(seconds)} kills, {num_generations} generations; ms until all "
        f"survivors went on: median {statistics.median(milliseconds):.0f}, max "
        f"{milliseconds[-1]:.0f}, all {[round(one) for one in milliseconds]}"
    )
    names = ["hvdrun", "rank"] if options.keep else ["hvdrun"]
    for which, name in enumerate(names):
        shown = [
            f"{one[which][0]} descriptors, {one[which][1]:.1f} MB"
            for one in (held[1], held[len(held) // 2], held[-1])
        ]
        print(f"{name}: {'; '.join(shown)}")


if __name__ == "__main__":
    main()
