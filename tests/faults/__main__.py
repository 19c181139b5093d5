"""Runs the whole fault set and prints the score: `make fault-set`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/hosts")]

from network import Network  # noqa: E402

from faults import cases, runner  # noqa: E402
from faults.runner import Result  # noqa: E402
from hvd_keras._observe.verdict import Cause  # noqa: E402

_NEEDED = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults")
    parser.add_argument("--only", help="run cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="one of so many")
    parser.add_argument("--list", action="store_true", help="print the truths")
    parser.add_argument("--out", help="file for a JSON line a case")
    arguments = parser.parse_args()
    if arguments.list:
        for truth in cases.truths():
            print(json.dumps(truth))
        return 0
    chosen = [
        case
        for case in cases.all_cases()[:: arguments.every]
        if arguments.only is None or arguments.only in case.name
    ]
    results = _run(chosen, arguments.out)
    print(_score(results))
    right = sum(one.is_right for one in results)
    return 0 if right >= _NEEDED * len(results) else 1


def _run(chosen: list[cases.Case], out: str | None) -> list[Result]:
    results = []
    network = None
    with runner.new_folder() as of_hosts:
        try:
            if any(case.cause == Cause.SLOW_LINK for case in chosen):
                network = Network(of_hosts)
        except pytest.skip.Exception as reason:
            print(f"No case of a slow link: {reason}")
        try:
            for case in chosen:
                if case.cause == Cause.SLOW_LINK and network is None:
                    continue
                with runner.new_folder() as folder:
                    results.append(runner.run(case, folder, network))
                _tell(results[-1], out)
        finally:
            if network is not None:
                network.close()
    return results


def _tell(result: Result, out: str | None) -> None:
    row = {
        "case": result.case.name,
        "rank": result.case.rank,
        "truth": result.line,
        "verdict": result.verdict,
        "seconds": round(result.seconds, 3),
        "right": result.is_right,
        "line": result.has_right_line,
        "in_time": result.is_in_time,
    }
    if not (result.is_right and result.has_right_line and result.is_in_time):
        print(json.dumps(row), flush=True)
    if out is not None:
        with open(out, "a") as file:
            file.write(json.dumps({**row, "output": result.output}) + "\n")


def _score(results: list[Result]) -> str:
    lines = [
        "| Kind | Cases | Rank and cause | Line | In time | Median, most (s) |",
        "|---|---|---|---|---|---|",
    ]
    rows = [(cause.value, [r for r in results if r.case.cause == cause])
            for cause in Cause]  # fmt: skip
    for name, some in [*rows, ("all", results)]:
        if not some:
            continue
        with_line = [one for one in some if one.line is not None]
        lines_right = sum(one.has_right_line for one in with_line)
        seconds = [one.seconds for one in some]
        lines.append(
            f"| {name} | {len(some)} | {sum(one.is_right for one in some)} | "
            f"{lines_right} of {len(with_line)} | "
            f"{sum(one.is_in_time for one in some)} | "
            f"{median(seconds):.2f}, {max(seconds):.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
