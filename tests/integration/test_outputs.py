"""Outputs whose memory the engine asks for while a collective runs."""

from __future__ import annotations

import jobs
import pytest


@pytest.mark.timed
@pytest.mark.parametrize(
    ("call", "results"),
    [
        ("_core.allgather('x', [np.full(2, rank)])", ["[0, 0, 1, 1]"] * 2),
        pytest.param(
            "_core.alltoall('x', np.arange(2) + rank)",
            ["[0, 1]", "[1, 2]"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "_core.reducescatter('x', [np.arange(2)], 1)",
            ["[0]", "[2]"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["allgather", "alltoall", "reducescatter"],
)
def test_a_rank_whose_gil_is_held_takes_part(
    call: str, results: list[str]
) -> None:
    """For longer than a rank may stop in the middle of a collective."""
    job = jobs.run_core(
        2,
        f"""
        import ctypes

        os.environ["HVD_STALL_SHUTDOWN_TIME_SECONDS"] = "3"
        hvd.init()
        total("all")
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append({call}[0]))
        if rank == 1:
            thread.start()
            time.sleep(0.5)
            ctypes.PyDLL(None).sleep(6)  # holds the GIL
        else:
            time.sleep(1.5)
            begin = time.monotonic()
            thread.start()
            thread.join()
            assert time.monotonic() - begin < 3
            time.sleep(5)
        thread.join()
        print(outputs[0].tolist(), total("later", rank))
        """,
    )
    for rank in range(2):
        expected = f"{results[rank]} 1.0"
        assert job.lines(rank) == [expected], job.stdout + job.stderr


def test_a_rank_without_memory_fails_that_call_on_all_ranks() -> None:
    job = jobs.run_core(
        2,
        """
        import resource

        hvd.init()
        total("all")
        if rank == 1:
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), -1))
        try:
            _core.allgather("x", [np.ones(64 << 20, np.uint8)])  # gives 128 MB
        except hvd.HvdError as error:
            print(type(error).__name__, error)
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        print(total("later"))
        """,
    )
    text = (
        "InternalError allgather 'x': rank 1 could not allocate output 0 of "
        "shape [134217728]"
    )
    assert job.lines(0) == [text, "2.0"], job.stdout + job.stderr
    cause = "no memory for 134217728 bytes"
    assert job.lines(1) == [f"{text}: {cause}", "2.0"]
