"""TFRecord files: each rank reads its own records, in the order of one."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except
from test_late_rows import taken

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras.data import _sources, position

pytestmark = [
    pytest.mark.thorough(4),
    pytest.mark.usefixtures("own_cache"),
]

Dataset = tf.data.Dataset
Records = tf.data.TFRecordDataset

COUNTS = (13, 0, 7, 1, 22, 0, 5)  # of the files
LONG = 12_000  # bytes


def record_of(file: int, number: int, length: int = 0) -> bytes:
    return b"%d %d" % (file, number) + b" " * (length or number * 37 % 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of files, the same for all ranks; its name ends with `/`."""
    return _made_by_rank_0(tmp_path_factory.mktemp("few"), COUNTS, 0)


@pytest.fixture(scope="module")
def long_records(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _made_by_rank_0(tmp_path_factory.mktemp("long"), (180, 180), LONG)


def _made_by_rank_0(
    own: pathlib.Path, counts: tuple[int, ...], length: int
) -> str:
    top: str = hvd.broadcast_object(f"{own}/")
    if hvd.rank() == 0:
        for file, count in enumerate(counts):
            with tf.io.TFRecordWriter(f"{top}{file}.tfrecord") as writer:
                for number in range(count):
                    writer.write(record_of(file, number, length))
    hvd.barrier()
    return top


def names_in(folder: str) -> list[str]:
    return [f"{folder}{file}.tfrecord" for file in range(len(COUNTS))]


def parse(record: Any) -> Any:
    parts = tf.strings.split(tf.strings.strip(record), " ")
    numbers = tf.strings.to_number(parts)
    return numbers[:1], tf.reshape(numbers[1], [])


def parse_batch(records: Any) -> Any:
    return tf.vectorized_map(tf.strings.length, records), records


def of_list(folder: str) -> Any:
    return Records(names_in(folder)).map(parse).shuffle(20, seed=1)


def of_one(folder: str) -> Any:
    return Records(names_in(folder)[4]).map(parse)


def of_listed(folder: str) -> Any:
    files = Dataset.list_files(f"{folder}*", seed=3)
    return Records(files).map(parse).repeat(2)


def of_shuffled(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder)).shuffle(9, seed=5)
    return files.flat_map(Records).map(parse).shuffle(9, seed=1)


def of_some(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder)).shuffle(9, seed=5)
    return files.take(5).repeat(2).flat_map(Records).map(parse).skip(2)


def of_interleaved(folder: str) -> Any:
    def read(name: Any) -> Any:
        return Records(name).map(parse, num_parallel_calls=tf.data.AUTOTUNE)

    files = Dataset.from_tensor_slices(names_in(folder))
    return files.interleave(read, cycle_length=3, block_length=2)


def of_parallel_calls(folder: str) -> Any:
    files = Dataset.list_files(f"{folder}*", seed=3)
    return files.interleave(
        lambda name: Records(name, num_parallel_reads=1).map(parse),
        cycle_length=4,
        num_parallel_calls=tf.data.AUTOTUNE,
    ).shuffle(30, seed=2)


def of_automatic_cycle(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder))
    return files.interleave(
        lambda name: Records(name).prefetch(2).map(parse, 2),
        num_parallel_calls=2,
    )


def of_parallel_reads(folder: str) -> Any:
    return Records(names_in(folder), num_parallel_reads=3).map(parse)


def of_parts(folder: str) -> Any:
    """As readers of `tensorflow_datasets` do it."""
    parts = Dataset.from_tensor_slices(
        {
            "file": names_in(folder),
            "skip": np.arange(7),
            "take": np.full(7, 3),
        }
    )

    def read(part: Any) -> Any:
        return Records(part["file"]).skip(part["skip"]).take(part["take"])

    return parts.interleave(read, cycle_length=2).map(parse)


def of_records_alone(folder: str) -> Any:
    return Records(names_in(folder))


def of_batches(folder: str) -> Any:
    return Records(names_in(folder)).batch(4)


def of_changed_batches(folder: str) -> Any:
    records = Records(names_in(folder)).shuffle(9, seed=1)
    return records.batch(4).map(parse_batch)


# On other numbers of ranks a policy changes nothing of how rows are read.
POLICIES = [
    "split",
    *(
        pytest.param(policy, marks=pytest.mark.thorough)
        for policy in ("pad", "join", "drop")
        if hvd.size() == 2
    ),
]

CASES: dict[str, tuple[Callable[[str], Any], bool]] = {
    "list": (of_list, False),
    "one": (of_one, False),
    "list_files": (of_listed, False),
    "shuffled": (of_shuffled, False),
    "some files": (of_some, False),
    "interleave": (of_interleaved, False),
    "parallel calls": (of_parallel_calls, False),
    "automatic cycle": (of_automatic_cycle, False),
    "parallel reads": (of_parallel_reads, False),
    "parts": (of_parts, False),
    "records alone": (of_records_alone, False),
    "batches": (of_batches, True),
    "changed batches": (of_changed_batches, True),
}


QUICK = (
    "interleave",
    "parallel reads",
    "list_files",
    "shuffled",
    "records alone",
    "changed batches",
)


@pytest.mark.parametrize("case", thorough_except(CASES, *QUICK))
@pytest.mark.parametrize("policy", POLICIES)
def test_numbered_records_are_the_same(
    case: str, policy: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, batched = CASES[case]
    options = {"policy": policy, "batched": batched}
    late = _sources.late_rows_of(make(folder), batched=batched, is_fixed=True)
    assert late is not None
    numbers = tf.nest.flatten(late.numbers.element_spec)
    assert [spec.dtype for spec in numbers] == [tf.int64]
    found = taken(lambda: make(folder), **options)
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert found == taken(lambda: make(folder), **options)


def of_compressed(folder: str) -> Any:
    name = f"{folder}gz"
    if hvd.rank() == 0:
        with tf.io.TFRecordWriter(name, "GZIP") as writer:
            for number in range(9):
                writer.write(record_of(0, number))
    hvd.barrier()
    return Records(name, compression_type="GZIP").map(parse)


def of_changed_names(folder: str) -> Any:
    files = Dataset.from_tensor_slices([f"{file}" for file in range(7)])
    return files.map(lambda name: folder + name + ".tfrecord").flat_map(Records)


def of_own_names(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder))
    return files.flat_map(lambda name: Records([names_in(folder)[2], name]))


def of_shuffled_in_files(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder))
    return files.flat_map(lambda name: Records(name).shuffle(9, seed=1))


def of_named_rows(folder: str) -> Any:
    files = Dataset.from_tensor_slices(names_in(folder))
    return files.flat_map(lambda f: Records(f).map(lambda r: (r, f)))


@pytest.mark.parametrize(
    "make",
    [
        of_compressed,
        of_changed_names,
        of_own_names,
        of_shuffled_in_files,
        of_named_rows,
    ],
)
def test_what_has_no_numbers_is_read_by_all(
    make: Callable[[str], Any], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(folder)
    late = _sources.late_rows_of(data, batched=False, is_fixed=True)
    if late is not None:
        assert late.numbers.element_spec != tf.TensorSpec([], tf.int64)
    found = taken(lambda: data)
    monkeypatch.setattr(_sources, "late_rows_of", lambda *_, **__: None)
    assert found == taken(lambda: data)


def _bytes_read() -> int:
    """What this process has got from the system's calls that read."""
    text = pathlib.Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


def test_a_rank_reads_its_own_records_alone(long_records: str) -> None:
    names = [f"{long_records}{file}.tfrecord" for file in range(2)]
    data = Records(names).map(parse).shuffle(100, seed=1)
    share = hvd.shard(data, batch_size=4)
    list(share)
    before = _bytes_read()
    rows = [float(x) for batch in share for x in batch[1]]
    read = _bytes_read() - before
    total = sum(map(os.path.getsize, names))
    assert len(rows) == 360 // hvd.size()
    assert read <= (1 / hvd.size() + 0.05) * total
    assert read >= 0.9 * total / hvd.size()


def test_the_first_pass_reads_little_more(long_records: str) -> None:
    names = [f"{long_records}{file}.tfrecord" for file in range(2)]
    before = _bytes_read()
    list(hvd.shard(Records(names).map(parse), batch_size=4))
    total = sum(map(os.path.getsize, names))
    slack = 200_000  # Python's modules and the like
    assert _bytes_read() - before <= (1 / hvd.size() + 0.05) * total + slack


def test_going_on_reads_no_record_before(long_records: str) -> None:
    names = [f"{long_records}{file}.tfrecord" for file in range(2)]
    data = Records(names).map(parse)
    data = data.shuffle(50, seed=1, reshuffle_each_iteration=False)
    share = hvd.shard(data, batch_size=4, elastic=True)
    whole = [batch[1].numpy().tolist() for batch in share]
    handle = position.handle_of(share)
    assert handle is not None
    done = 80 // hvd.size()
    handle.seek(handle.position_after(done))
    before = _bytes_read()
    rest = [batch[1].numpy().tolist() for batch in share]
    assert rest == whole[done:]
    own = 360 // hvd.size() * LONG
    assert _bytes_read() - before <= 0.2 * own + 0.05 * 360 * LONG


def test_a_function_of_the_epoch(folder: str) -> None:
    def make(epoch: int) -> Any:
        names = names_in(folder)[epoch : epoch + 4]
        return Records(names).map(parse).shuffle(9, seed=epoch)

    share = hvd.shard(make, batch_size=2)
    for epoch in range(3):
        own = [x.tolist() for batch in share for x in batch[0].numpy()]
        files = [x for each in hvd.allgather_object(own) for (x,) in each]
        expected = np.repeat(range(7), COUNTS)
        is_used = (expected >= epoch) & (expected < epoch + 4)
        assert set(files) == set(expected[is_used])


@pytest.mark.parametrize("what", ["torn", "damaged"])
def test_damage_is_told_with_its_place(
    what: str, folder: str, tmp_path: pathlib.Path
) -> None:
    content = bytearray(pathlib.Path(names_in(folder)[0]).read_bytes())
    if what == "torn":
        del content[-1:]
    else:
        content[12] ^= 1
    path = tmp_path / "x"
    path.write_bytes(content)
    records = Records(hvd.broadcast_object(str(path)))
    if what == "torn":
        with pytest.raises(hvd.DamagedFileError, match="x: record 12, at byte"):
            hvd.shard(records, batch_size=2)
    else:
        share = hvd.shard(records, batch_size=2)
        assert len(hvd.allgather_object(0)) == hvd.size()
        if hvd.rank() == 0:
            with pytest.raises(
                tf.errors.DataLossError,
                match="x: record 0, at byte 0: its data",
            ):
                list(share)
    hvd.barrier()


def test_damage_that_is_ignored(folder: str, tmp_path: pathlib.Path) -> None:
    content = pathlib.Path(names_in(folder)[0]).read_bytes()
    path = hvd.broadcast_object(str(tmp_path / "x"))
    if hvd.rank() == 0:
        pathlib.Path(path).write_bytes(content[:-1])
    hvd.barrier()
    records = Records(path).ignore_errors()
    own = [x for batch in hvd.shard(records, batch_size=1) for x in batch]
    assert sum(hvd.allgather_object(len(own))) == COUNTS[0] - 1
    hvd.barrier()


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_ranks_with_other_files_have_other_numbers(folder: str) -> None:
    names = names_in(folder)
    if hvd.rank() == 1:
        names[0], names[2] = names[2], names[0]
    late = _sources.late_rows_of(Records(names), batched=False, is_fixed=True)
    assert late is not None
    found = hvd.allgather_object(list(late.numbers.as_numpy_iterator()))
    assert found[0] != found[1]


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_a_file_that_a_rank_lacks_is_read_as_before(
    folder: str, tmp_path: pathlib.Path
) -> None:
    names = names_in(folder)[:2]
    if hvd.rank() == 1:
        names[1] = str(tmp_path / "none")
    share = hvd.shard(Records(names).map(parse), batch_size=2)
    late = _sources.late_rows_of(
        Records(names).map(parse), batched=False, is_fixed=True
    )
    assert late is None or late.numbers.element_spec.dtype == tf.string
    if hvd.rank() == 1:
        with pytest.raises(tf.errors.NotFoundError):
            list(share)
    hvd.barrier()


def test_a_changed_file_is_told_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(log, "info", told.append)
    path, size = hvd.broadcast_object(str(tmp_path / "x")), hvd.size()
    for records in ([b"a"] * 4 * size, [b"b"] * 6 * size):
        if hvd.rank() == 0:
            with tf.io.TFRecordWriter(path) as writer:
                for record in records:
                    writer.write(record)
        for _ in range(2):
            hvd.barrier()
            share = hvd.shard(Records(path), batch_size=1)
            own = [x for batch in share for x in batch.numpy().tolist()]
            assert own == records[: len(records) // size]
            hvd.barrier()
    found = [line for line in told if "indexed" in line]
    said = f"indexed {path} anew: changed since the last time"
    assert found == [said] * (hvd.rank() == 0)
