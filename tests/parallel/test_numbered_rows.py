"""`hvd.data.records`: one order for any number of ranks, each row once."""

from __future__ import annotations

import io
import pathlib
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras.data import position

pytestmark = pytest.mark.usefixtures("own_cache")

NUM_ROWS = 61  # not divisible by 2, 3 or 4
POLICIES = [
    "split",
    *(
        pytest.param(policy, marks=pytest.mark.thorough)
        for policy in ("pad", "join", "drop")
    ),
]


def written_tfrecords(folder: pathlib.Path) -> list[str]:
    paths, numbers = [], np.array_split(np.arange(NUM_ROWS), 3)
    for file, each in enumerate(numbers):
        paths.append(str(folder / f"{file}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for number in each:
                writer.write(b"%d " % number + b"x" * 90_000)
    return paths


def parsed_text(record: Any) -> Any:
    number = tf.strings.to_number(tf.strings.split(record, " ")[0])
    return number[None], number


def written_tars(folder: pathlib.Path) -> list[str]:
    """As WebDataset writes them: two members a row."""
    paths, numbers = [], np.array_split(np.arange(NUM_ROWS), 3)
    for file, each in enumerate(numbers):
        paths.append(str(folder / f"{file}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for number in each:
                for name, data in (
                    (f"of/{number:06}.txt", b"%d" % number),
                    (f"of/{number:06}.raw.bin", b"x" * 90_000),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return paths


def written_parquet(folder: pathlib.Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    paths, numbers = [], np.array_split(np.arange(NUM_ROWS), 3)
    for file, each in enumerate(numbers):
        columns = {
            "number": each.astype(np.float32),
            "text": [str(number) for number in each],
            "pair": pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(np.repeat(each, 2)), 2
            ),
        }
        paths.append(str(folder / f"{file}.parquet"))
        pyarrow.parquet.write_table(
            pyarrow.table(columns), paths[-1], row_group_size=5
        )
    return paths


def written_array_records(folder: pathlib.Path) -> list[str]:
    from array_record.python import array_record_module

    paths, numbers = [], np.array_split(np.arange(NUM_ROWS), 3)
    for file, each in enumerate(numbers):
        paths.append(str(folder / f"{file}.array_record"))
        writer = array_record_module.ArrayRecordWriter(
            paths[-1], "group_size:1"
        )
        for number in each:
            writer.write(b"%d " % number + b"x" * 90_000)
        writer.close()
    return paths


def parsed_members(row: Any) -> Any:
    number = tf.strings.to_number(row["txt"])
    same = [
        tf.debugging.assert_equal(tf.strings.length(row["raw.bin"]), 90_000),
        tf.debugging.assert_equal(
            tf.strings.to_number(tf.strings.substr(row["__key__"], 3, 6)),
            number,
        ),
    ]
    with tf.control_dependencies(same):
        return number[None], tf.identity(number)


def parsed_columns(row: Any) -> Any:
    number = tf.strings.to_number(row["text"])
    pair = tf.cast(row["pair"], tf.float32)
    with tf.control_dependencies(
        [tf.debugging.assert_equal(pair, tf.stack([number, number]))]
    ):
        return row["number"][None], tf.identity(number)


KINDS: dict[str, tuple[Callable[[pathlib.Path], list[str]], Any]] = {
    "tfrecord": (written_tfrecords, parsed_text),
    "webdataset": (written_tars, parsed_members),
    "parquet": (written_parquet, parsed_columns),
    "array_record": (written_array_records, parsed_text),
}
NEEDS = {"parquet": "pyarrow", "array_record": "array_record"}


@pytest.fixture(scope="module", params=KINDS)
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Makes a dataset of (number, number) of files that hold 0 to 60."""
    write, parse = KINDS[request.param]
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])
    own = str(tmp_path_factory.mktemp("rows"))
    folder = pathlib.Path(hvd.broadcast_object(own))
    paths = write(folder) if hvd.rank() == 0 else None
    paths = hvd.broadcast_object(paths)
    return lambda **more: hvd.data.records(paths, **more).map(parse)


def taken(share: Any) -> list[int]:
    """Returns the rows of all ranks in an iteration, in order."""
    own = []
    for x, *rest in share:
        weights = rest[1] if len(rest) == 2 else np.ones(len(x))
        own.append([int(n) for n, w in zip(x[:, 0], weights, strict=True) if w])
    of_ranks = hvd.allgather_object(own)
    steps = max(map(len, of_ranks))
    padded = [each + [[]] * (steps - len(each)) for each in of_ranks]
    return [n for step in zip(*padded, strict=True) for e in step for n in e]


def order_of(data: Any) -> list[int]:
    """Returns the rows of the next epoch on this rank alone."""
    return [int(number) for _, number in data]


@pytest.mark.parametrize(
    "shuffle", thorough_except([None, "global", "blocks"], "blocks")
)
@pytest.mark.parametrize("policy", POLICIES)
def test_any_number_of_ranks_has_the_same_order(
    shuffle: str | None, policy: str, rows: Callable[..., Any]
) -> None:
    options = {"shuffle": shuffle, "seed": 3, "window": 2}
    share = hvd.shard(rows(**options), batch_size=4, policy=policy)
    alone = rows(**options)
    orders = []
    for _ in range(3):
        expected = order_of(alone)
        assert sorted(expected) == list(range(NUM_ROWS))
        full = NUM_ROWS // (4 * hvd.size()) * 4 * hvd.size()
        found = taken(share)
        assert found == expected[: full if policy == "drop" else None]
        orders.append(expected)
    assert (orders[0] == sorted(orders[0])) == (shuffle is None)
    assert (orders[0] == orders[1]) == (shuffle is None)
    # What all ranks must agree on across jobs, whatever their number is.
    if shuffle == "global":
        assert orders[0][:6] == [42, 9, 28, 12, 33, 27]


@pytest.mark.parametrize(
    "shuffle",
    [
        "global",
        pytest.param(None, marks=pytest.mark.thorough),
        pytest.param("blocks", marks=pytest.mark.thorough),
    ],
)
def test_going_on_at_a_row(
    shuffle: str | None, rows: Callable[..., Any]
) -> None:
    data = rows(shuffle=shuffle, seed=5)
    share = hvd.shard(data, batch_size=4, elastic=True)
    epochs = [taken(share) for _ in range(3)]
    handle = position.handle_of(share)
    assert handle is not None
    for epoch, row in ((1, 13), (2, 48), (1, 60)):  # of any number of ranks
        handle.seek(position.Position(epoch, row))
        assert taken(share) == epochs[epoch][row:]
    handle.seek(position.Position(2, 0))
    assert taken(share) == epochs[2]


def test_stages_behind_it(rows: Callable[..., Any]) -> None:
    data = rows(shuffle="global").take(20).repeat(2).shuffle(50, seed=1)
    share = hvd.shard(data, batch_size=2)
    first, second = taken(share), taken(share)
    assert len(first) == len(second) == 40
    assert len(set(first)) > 20  # the second time others come
    assert set(first) != set(second)


def test_a_function_of_the_epoch(rows: Callable[..., Any]) -> None:
    fixed = hvd.shard(rows(shuffle="global"), batch_size=4)
    made = hvd.shard(lambda _: rows(shuffle="global"), batch_size=4)
    assert [taken(fixed) for _ in range(3)] == [taken(made) for _ in range(3)]


def test_what_needs_all_rows(rows: Callable[..., Any]) -> None:
    data = rows(shuffle="global").filter(lambda x, _: x[0] % 2 == 0)
    share = hvd.shard(data, batch_size=4)
    alone = rows(shuffle="global")
    for _ in range(2):
        assert taken(share) == [n for n in order_of(alone) if n % 2 == 0]


def test_a_rank_reads_its_own_rows(
    rows: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    share = hvd.shard(rows(shuffle="global"), batch_size=4)
    if request.node.callspec.params["rows"] == "parquet":
        pytest.skip("pyarrow reads groups of rows")
    list(share)
    of_passes = []
    for _ in range(3):  # other threads of the process may read, too
        before = _bytes_read()
        list(share)
        of_passes.append(_bytes_read() - before)
    total = NUM_ROWS * 90_000
    assert min(of_passes) <= (1 / hvd.size() + 0.1) * total, of_passes


def _bytes_read() -> int:
    text = pathlib.Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(log, "warning", found.append)
    return found


def _damaged(folder: pathlib.Path) -> list[str]:
    """Files of 61 records, of which 2 are damaged, and 3 behind are lost."""
    paths = written_tfrecords(folder)
    size = 90_000 + 16
    for path, offset in (
        (paths[0], 3 * (size + 2)),
        (paths[1], 4 * (size + 3)),
        (paths[2], -3 * (size + 3)),
    ):
        content = bytearray(pathlib.Path(path).read_bytes())
        content[offset + (0 if offset < 0 else 40)] ^= 1
        pathlib.Path(path).write_bytes(content)
    return paths


def test_damaged_records_are_left_out(
    tmp_path: pathlib.Path, lines: list[str]
) -> None:
    folder = pathlib.Path(hvd.broadcast_object(str(tmp_path)))
    paths = _damaged(folder) if hvd.rank() == 0 else None
    paths = hvd.broadcast_object(paths)
    with pytest.raises(
        hvd.DamagedFileError, match=r"2\.tfrecord: record 17, at"
    ):
        hvd.data.records(paths)
    for _ in range(2):  # made, then kept
        data = hvd.data.records(paths, shuffle="blocks", on_error="skip")
        share = hvd.shard(data.map(parsed_text), batch_size=2)
        found = taken(share)
        left = {*range(NUM_ROWS - 3)} - {3, 25}
        assert len(found) == len(left)
        assert set(found) == left
        assert len(lines) == (hvd.rank() == 0)
        assert all(
            "2 damaged records and 270057 bytes" in line for line in lines
        )
        lines.clear()
    hvd.barrier()


def test_what_cannot_be_read_is_told_on_all_ranks(
    tmp_path: pathlib.Path,
) -> None:
    path = str(tmp_path / "none.tfrecord")
    with pytest.raises(hvd.InvalidArgumentError, match=r"none.*: No such file"):
        hvd.data.records(hvd.broadcast_object(path))
    for wrong in (
        {"shuffle": "all"},
        {"on_error": "ignore"},
        {"seed": -1},
        {"window": 0},
        {"kind": "zip"},
    ):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            hvd.data.records(path, **wrong)
    with pytest.raises(ValueError, match="name a file"):
        hvd.data.records([])
