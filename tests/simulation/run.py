"""Runs simulated jobs: `PYTHONPATH=tests python -m simulation.run --help`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time

from simulation import job
from simulation.invariants import ViolationError


@dataclasses.dataclass
class Summary:
    """What became of many jobs."""

    num_jobs: int = 0
    seconds: float = 0.0
    failures: list[str] = dataclasses.field(default_factory=list)
    statuses: dict[int, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.num_jobs} jobs in {self.seconds:.1f} s of a core "
            f"({self.num_jobs / self.seconds:.0f} a second), "
            f"{len(self.failures)} failed; exit statuses {self.statuses}"
        )


def many(
    first: int,
    seconds: float = math.inf,
    most_failures: int = 5,
    most_jobs: float = math.inf,
) -> Summary:
    """Runs the jobs of seeds from a first one on, and prints who fails.

    Args:
        first: The first seed.
        seconds: The time of a core that it takes.
        most_failures: It ends after so many.
        most_jobs: It ends after so many.
    """
    found, began = Summary(), time.process_time()
    while (
        found.seconds < seconds
        and found.num_jobs < most_jobs
        and len(found.failures) < most_failures
    ):
        try:
            status = job.run(first + found.num_jobs)
            found.statuses[status] = found.statuses.get(status, 0) + 1
        except ViolationError as error:
            found.failures.append(str(error))
            print(error)
        found.num_jobs += 1
        found.seconds = time.process_time() - began
    print(found)
    return found


def main() -> int:
    """Runs one seed, or seeds from a first one on for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="shows what happens in it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--most-failures", type=int, default=5)
    args = parser.parse_args()
    if args.seed is not None:
        job.run(args.seed, traces=True)
        return 0
    found = many(args.first, args.seconds, args.most_failures)
    return int(bool(found.failures))


if __name__ == "__main__":
    raise SystemExit(main())
