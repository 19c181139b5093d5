"""Runs the first checks on a machine with GPUs: `make gpu-first-hour`.

Each check passes or fails, some with a figure. The report is
build/gpu_first_hour.md. What has passed is not run again: a run that was
interrupted goes on. `--again` begins anew. Without a GPU it says so and ends
with 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).parents[1]
LIMIT_SECONDS = 3600
sys.path.insert(0, str(ROOT))

from hvd_keras._common import gpus  # noqa: E402


@dataclasses.dataclass
class Check:
    """A command of the shell; it passes with status 0."""

    name: str
    command: str
    seconds: float = 300.0
    # Lines of its output that have this are the figure; "": the last line.
    figure: str = ""


@dataclasses.dataclass
class Outcome:
    """How a check has ended."""

    status: str  # "pass", "fail", "late"
    figure: str
    seconds: float


def checks(num_gpus: int) -> list[Check]:
    """Returns all checks, in the order in which they are worth running.

    Args:
        num_gpus: GPUs of this host.
    """
    ranks = max(2, min(num_gpus, 8))
    many = " ".join(str(n) for n in (3, 4, 8) if n <= max(num_gpus, 4))
    # Ranks that have no GPU of their own may share one.
    share = "" if num_gpus >= ranks else "HVD_GPU_SHARE=1 "
    hvdrun = f"{sys.executable} -m hvd_keras.run"
    steps = f"tests/gpu/tensorflow/steps.py{'' if not share else ' --growth'}"

    def job(script: str, environ: str = "", num_ranks: int = 2) -> str:
        return (
            f"{share}{environ} {hvdrun} -np {num_ranks} --grace 30 -- "
            f"{sys.executable} {script}"
        ).strip()

    def each(commands: Sequence[str]) -> str:
        return " && ".join(commands)

    return [
        Check(
            "The machine",
            "nvidia-smi -L; nvidia-smi topo -m; df -h /dev/shm; ulimit -l; "
            "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader",
        ),
        Check(
            "Shim, and what is found",
            f"{sys.executable} -m hvd_keras.gpu_shim && {hvdrun} --check",
            figure="NCCL",
        ),
        Check("One rank", "make gpu-check RANKS=1", figure="passed"),
        Check(
            "Two ranks and more",
            f"NCCL_DEBUG=WARN make gpu-check RANKS='2 {many}'",
            600,
            "passed",
        ),
        Check(
            "A lost rank, 20 times",
            "for i in $(seq 20); do timeout 100 make gpu-check RANKS=1 "
            "LOST=1 || exit 1; done",
            900,
            "survived",
        ),
        Check("Streams", job(steps), figure="ms a step"),
        Check(
            "Streams, in other ways",
            each(
                [
                    job(steps, "HVD_GPU_ASYNC_COMPLETION=1"),
                    job(steps, "TF_GPU_ALLOCATOR=cuda_malloc_async"),
                    job(f"{steps} --int32 --size 256"),
                    job(f"{steps} --empty-first", "HVD_GPUS_PER_RANK=0"),
                ]
            ),
            600,
            "ms a step",
        ),
        Check(
            "compute-sanitizer",
            "make gpu-check RANKS=2 "
            "UNDER='compute-sanitizer --target-processes all'",
            900,
            "ERROR SUMMARY",
        ),
        Check(
            "Beside bare NCCL",
            "for s in batch:67108864 batch:268435456 copies:67108864 "
            "none:67108864; do HVD_GPU_PACKING=${s%:*} "
            f"HVD_GPU_FUSION_BUFFER=${{s#*:}} {share}{hvdrun} "
            f"-np {ranks} -- {sys.executable} benchmarks/gpu.py "
            "|| exit 1; done",
            900,
            '"gradients"',
        ),
        Check(
            "Threads of NCCL",
            f"nsys profile -t cuda,osrt -o build/gpu_first_hour -f true "
            f"{hvdrun} -np 2 -- {sys.executable} benchmarks/gpu.py "
            "--max-bytes 65536 && nsys stats -q -r osrt_sum "
            "build/gpu_first_hour.nsys-rep | grep pthread_create",
            figure="pthread_create",
        ),
        Check(
            "Memory",
            each(
                [
                    job(f"{steps} --own-set", "HVD_GPU=late"),
                    job(f"{steps} --own-set", "HVD_GPU=on"),
                ]
            ),
            figure="ms a step",
        ),
        Check(
            "An example as it is",
            each(
                [
                    job("examples/keras_digits.py"),
                    f"{sys.executable} benchmarks/fit.py --np=2",
                ]
            ),
            600,
        ),
        Check(
            "XLA",
            each(
                [
                    job(f"{steps} --jit"),
                    job(
                        f"{steps} --jit",
                        "XLA_FLAGS=--xla_gpu_enable_command_buffer="
                        "FUSION,CUBLAS,CUSTOM_CALL",
                    ),
                ]
            ),
            figure="ms a step",
        ),
        Check(
            "Two sets at once",
            job("tests/gpu/sets_at_once.py", num_ranks=max(3, ranks)),
            300,
            "both sets",
        ),
        Check(
            "Faults",
            each(
                [
                    job(f"{steps} --fault stop"),
                    f"{{ {job(f'{steps} --fault kill')} || true; }} "
                    "| tee build/gpu_fault.log; "
                    "grep survived build/gpu_fault.log",
                    f"{{ {job(f'{steps} --jit --fault kill')} || true; }} "
                    "| tee build/gpu_fault.log; "
                    "grep survived build/gpu_fault.log",
                ]
            ),
            figure="survived",
        ),
    ]


def run_one(check: Check, log: pathlib.Path, seconds: float) -> Outcome:
    """Runs a check; ends all of its processes if it takes too long.

    Args:
        check: What to run.
        log: Gets the output.
        seconds: How long it may take.
    """
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "gpu")]),
    }
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", check.command],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = "pass" if process.wait(seconds) == 0 else "fail"
        except subprocess.TimeoutExpired:
            status = "late"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").splitlines() or ["no output"]
    found = [line for line in lines if check.figure and check.figure in line]
    figure = (found or lines)[-1].strip()
    return Outcome(status, figure[:200], time.monotonic() - begin)


def run_all(
    todo: Sequence[Check],
    folder: pathlib.Path,
    limit_seconds: float,
    say: Callable[[str], None],
) -> bool:
    """Runs what has not passed yet, and writes the report after each check.

    Args:
        todo: The checks, in order.
        folder: Where report, state and logs go.
        limit_seconds: No check begins or goes on after so long.
        say: Told of each outcome.

    Returns:
        Whether all have passed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "gpu_first_hour.json"
    known: dict[str, Outcome] = {}
    if state.exists():
        stored = json.loads(state.read_text())
        known = {name: Outcome(**value) for name, value in stored.items()}
    end = time.monotonic() + limit_seconds
    for number, check in enumerate(todo, 1):
        last = known.get(check.name)
        left = end - time.monotonic()
        if (last is not None and last.status == "pass") or left <= 0:
            continue
        log = folder / f"gpu_first_hour_{number}.log"
        outcome = run_one(check, log, min(check.seconds, left))
        known[check.name] = outcome
        stored = {n: dataclasses.asdict(one) for n, one in known.items()}
        state.write_text(json.dumps(stored, indent=1))
        (folder / "gpu_first_hour.md").write_text(report(todo, known))
        say(f"{number}. {check.name}: {outcome.status}, {outcome.figure}")
    outcomes = [known.get(check.name) for check in todo]
    return all(one is not None and one.status == "pass" for one in outcomes)


def report(todo: Sequence[Check], known: dict[str, Outcome]) -> str:
    """Returns the outcomes as a table in Markdown."""
    rows = ["| | Check | Outcome | Figure | Time |", "|---|---|---|---|---|"]
    for number, check in enumerate(todo, 1):
        one = known.get(check.name, Outcome("not run", "", 0.0))
        figure = one.figure.replace("|", "\\|")
        rows.append(
            f"| {number} | {check.name} | {one.status} | {figure} | "
            f"{one.seconds:.0f} s |"
        )
    commands = [
        f"{number}. `{check.command}`" for number, check in enumerate(todo, 1)
    ]
    return "\n".join(["# First hour on a GPU", "", *rows, "", *commands, ""])


def main() -> int:
    """Returns the exit status: 0 if all passed, or without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    chosen = parser.parse_args()
    num_gpus = len(gpus.visible(os.environ))
    if num_gpus == 0:
        print("No GPU here: nothing to check.")
        return 0
    folder = ROOT / "build"
    if chosen.again:
        (folder / "gpu_first_hour.json").unlink(missing_ok=True)
    passed = run_all(
        checks(num_gpus), folder, LIMIT_SECONDS, lambda t: print(t, flush=True)
    )
    print(f"The report: {folder / 'gpu_first_hour.md'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
