"""Packed floats and thin factors between two hosts: bits, bounds, bytes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
from network import ADDRESSES, ROOT, Network, finish, free_port, python
from packed_rank import AGAIN, LENGTHS, inputs

thorough = pytest.mark.thorough
nightly = pytest.mark.nightly
RANK = str(Path(__file__).with_name("packed_rank.py"))
BENCHMARK = f"{ROOT}/benchmarks/_hosts_rank.py"
HOSTS = ((0, 1), (2, 3))  # the ranks of each
# Elements with one scale, and twice its largest integer.
EXACT = ("PowerSGD",)  # for vectors
FORMATS = {"int8": (128, 254), "int4": (64, 14)}


def _run(
    network: Network, secret: str, *command: str, **extra: str
) -> list[tuple[int, str, str]]:
    """Runs a job of two ranks on each of two hosts."""
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *command,
            HVD_SECRET_FILE=secret, PYTHONPATH=ROOT, **extra,
        )
        for host in range(2)
    ]  # fmt: skip
    return [finish(job, 300) for job in jobs]


def _largest(values: np.ndarray, block: int) -> np.ndarray:
    """Returns the largest magnitude of each element's block."""
    padded = np.zeros(-(-len(values) // block) * block)
    padded[: len(values)] = np.abs(values)
    largest = padded.reshape(-1, block).max(axis=1)
    return np.repeat(largest, block)[: len(values)]


def _check_sum(result: np.ndarray, index: int, compression: str) -> None:
    values = [inputs(rank)[index].astype(np.float64) for rank in range(4)]
    exact = np.sum(values, axis=0)
    if index == len(LENGTHS) or LENGTHS[index] < 4096 or compression in EXACT:
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)
        return
    block, levels = FORMATS[compression]
    # Either host may own an element; it brings its own values whole.
    sent = [
        _largest(sum(values[rank] for rank in ranks), block) for ranks in HOSTS
    ]
    bound = np.maximum(*sent) / levels
    bound += (_largest(exact, block) + bound) / levels
    error = np.abs(result - exact) / bound
    assert error.max() <= 1.0
    assert error.max() > 0.1  # it was rounded


@pytest.mark.parametrize(
    ("backend", "compression", "how"),
    [
        ("tensorflow", "int8", []),
        pytest.param("tensorflow", "int8", ["jit"], marks=nightly),
        ("tensorflow", "int4", []),
        pytest.param("tensorflow", "int4", ["jit"], marks=thorough),
        pytest.param("jax", "int8", [], marks=thorough),
        pytest.param("jax", "int4", [], marks=nightly),
        ("tensorflow", "PowerSGD", []),
        pytest.param("tensorflow", "PowerSGD", ["jit"], marks=nightly),
        pytest.param("jax", "PowerSGD", [], marks=nightly),
        pytest.param("torch", "PowerSGD", [], marks=nightly),
        pytest.param("torch", "int8", [], marks=thorough),
        pytest.param("torch", "int4", [], marks=nightly),
    ],
)
def test_all_ranks_get_equal_bits_within_the_bound(
    network: Network,
    secret: str,
    tmp_path: Path,
    backend: str,
    compression: str,
    how: list[str],
) -> None:
    ends = _run(
        network, secret, sys.executable, RANK, str(tmp_path), compression, *how,
        KERAS_BACKEND=backend,
    )  # fmt: skip
    assert [status for status, _, _ in ends] == [0, 0], ends
    first, *others = [
        dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(4)
    ]
    for other in others:
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value)
    for index in range(len(LENGTHS) + 1):
        _check_sum(first[f"arr_{index}"], index, compression)
    # Alone it has the bits that it has in a group.
    np.testing.assert_array_equal(first["arr_4"], first["arr_0"])
    values = np.sum([inputs(rank)[0] for rank in range(4)], axis=0)
    error = np.abs(first["arr_4"] - values).mean()
    error_of_mean = np.abs(first["arr_5"] - values).mean()
    if compression == "int4":  # what is lost comes later
        assert error_of_mean < 3 * error / AGAIN
    elif compression == "int8":  # the same each time
        assert error_of_mean > 0.9 * error
    exact, accuracy = first["accuracies"]
    assert accuracy > 0.93
    assert accuracy > exact - 0.02


def test_fewer_bytes_travel(network: Network, secret: str) -> None:
    size = 8 << 20
    sent = {}
    for compression in ("none", "int8", "int4"):
        ends = _run(
            network, secret, sys.executable, BENCHMARK, "5", compression,
            str(size),
        )  # fmt: skip
        assert [status for status, _, _ in ends] == [0, 0], ends
        line = ends[0][1]
        sent[compression] = json.loads(line[line.index("{") :])["sent"] / size
    assert 0.95 < sent["none"] < 1.1
    assert sent["int8"] <= 0.27
    assert sent["int4"] <= 0.15


_PRODUCTS = """
    import numpy as np
    import zlib
    import hvd_keras as hvd
    hvd.init()
    core = hvd._native.core()
    rank = hvd.rank()
    for format in (0x44, 0x64):
        random = np.random.default_rng(1)
        left = random.standard_normal((600, 3))
        right = random.standard_normal((3, 400))
        exact = (left @ right).astype(np.float32)
        ones = np.ones(10, np.float32)
        for call in range(6):
            # The matrix and a vector, which stays exact.
            result, sums = core.allreduce(
                f"a{format}", [exact * (rank + 1), ones * rank], 1,
                wire_format=format,
            )
            assert np.all(sums == 6)
            error = np.linalg.norm(result - 10 * exact)
            error /= np.linalg.norm(10 * exact)
            print("got:", format, call, error < 1e-4, zlib.crc32(result))
    hvd.shutdown()
"""


def test_matrices_travel_as_thin_factors(network: Network, secret: str) -> None:
    ends = _run(network, secret, *python(_PRODUCTS))
    assert [status for status, _, _ in ends] == [0, 0], ends
    got = re.findall("got: (.*)", "".join(stdout for _, stdout, _ in ends))
    assert len(got) == 48
    assert len(set(got)) == 12  # the same on all ranks
    assert all("True" in line for line in got if line.startswith("68 "))


_MISMATCH = """
    import numpy as np
    import hvd_keras as hvd
    hvd.init()
    rank = hvd.rank()
    core = hvd._native.core()
    ones = np.ones(5000, np.float32)
    try:
        core.allreduce("a/kernel", [ones], 1, wire_format=int(rank == 2))
    except hvd.MismatchError as error:
        print("told:", error)
    hvd.shutdown()
"""


def test_ranks_that_differ_are_told(network: Network, secret: str) -> None:
    ends = _run(network, secret, *python(_MISMATCH))
    assert [status for status, _, _ in ends] == [0, 0], ends
    told = re.findall("told: (.*)", "".join(stdout for _, stdout, _ in ends))
    assert told == 4 * [
        "allreduce 'a/kernel': ranks disagree on the compression: none on "
        "ranks 0, 1 and 3; int8 on rank 2"
    ]


_EMBEDDING = """
import json, pathlib, sys
import keras, numpy as np, tensorflow as tf
import hvd_keras as hvd
hvd.init()
words, width, tokens = 30_000, 128, 4096

def bytes_sent():
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
    names = (line.partition(":") for line in lines)
    return sum(int(rest.split()[8]) for name, _, rest in names
               if name.strip() != "lo")

draw = np.random.default_rng(hvd.rank())
chosen = np.minimum(draw.zipf(1.1, 6 * tokens) - 1, words - 1)
chosen = chosen.reshape(6, tokens).astype("int64")
rows = draw.standard_normal((6, tokens, width)).astype("f")
found = {}
for way in sys.argv[2:]:
    name, _, merges = way.partition("-")
    variable = keras.Variable(np.zeros((words, width), "f"))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=getattr(hvd.Compression, name),
        merge_slices=bool(merges), name="sgd_" + way,
    )
    optimizer.build([variable])
    step = tf.function(lambda values, at: optimizer.apply(
        [tf.IndexedSlices(values, at, tf.constant([words, width]))]))
    step(rows[0], chosen[0])  # traced
    before = variable.numpy()
    hvd.barrier()
    start = bytes_sent()
    for i in range(1, 6):
        step(rows[i], chosen[i])
    hvd.barrier()
    found[way] = (bytes_sent() - start) / 5
    np.save(f"{sys.argv[1]}/{way}-{hvd.rank()}.npy", variable.numpy() - before)
print(json.dumps(found))
"""
_WIDTH, _TOKENS = 128, 4096


def test_rows_of_embeddings_travel_as_int8(
    network: Network, secret: str, tmp_path: Path
) -> None:
    program = tmp_path / "rows.py"
    program.write_text(_EMBEDDING)
    ways = ["none", "int8", "int8-merged"]
    ends = _run(
        network, secret, sys.executable, str(program), str(tmp_path), *ways
    )
    assert [status for status, _, _ in ends] == [0, 0], ends
    sent = json.loads(ends[0][1][ends[0][1].index("{") :].splitlines()[0])
    of_indices = 2 * _TOKENS * 8  # of the two ranks of a host
    values = {way: sent[way] - of_indices for way in ways[:2]}
    assert 0.95 < values["none"] / (2 * _TOKENS * _WIDTH * 4) < 1.1
    assert values["int8"] / values["none"] <= 0.30
    assert sent["int8-merged"] / sent["int8"] <= 0.45
    results = {
        way: [np.load(tmp_path / f"{way}-{rank}.npy") for rank in range(4)]
        for way in ways
    }
    for first, *others in results.values():
        for other in others:
            np.testing.assert_array_equal(other, first)
    exact, packed = results["none"][0], results["int8"][0]
    error = np.abs(packed - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.02


def test_rows_stay_exact_on_one_host(tmp_path: Path) -> None:
    program = tmp_path / "rows.py"
    program.write_text(_EMBEDDING)
    ways = ["none", "int8"]
    job = jobs.run(
        "-np", "2", "--", sys.executable, str(program), str(tmp_path), *ways
    )
    assert job.status == 0, job.stderr
    none, int8 = (np.load(tmp_path / f"{way}-1.npy") for way in ways)
    np.testing.assert_array_equal(int8, none)
