"""TFRecord files that a filesystem of TensorFlow reads, as `gs://` ones.

`ram://` is one of them; each rank writes its own copy of the files.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import tensorflow as tf
from test_late_rows import taken

import hvd_keras as hvd
from hvd_keras.data import _remote_records, _sources

pytestmark = [
    pytest.mark.thorough(4),
    pytest.mark.usefixtures("own_cache"),
]

Records = tf.data.TFRecordDataset
COUNTS = (13, 0, 130, 1)


def record_of(file: int, number: int) -> bytes:
    return b"%d %d" % (file, number) + b" " * (number * 37 % 30_000)


def removed(name: str) -> None:
    """`ram://` files that are written anew keep what they had."""
    if tf.io.gfile.exists(name):
        tf.io.gfile.remove(name)


def written(folder: str) -> list[str]:
    names = [f"{folder}/{file}.tfrecord" for file in range(len(COUNTS))]
    for file, name in enumerate(names):
        removed(name)
        with tf.io.TFRecordWriter(name) as writer:
            for number in range(COUNTS[file]):
                writer.write(record_of(file, number))
    return names


def parse(record: Any) -> Any:
    parts = tf.strings.split(tf.strings.strip(record), " ")
    numbers = tf.strings.to_number(parts)
    return numbers[:1], tf.reshape(numbers[1], [])


def parsed(names: list[str]) -> Any:
    return Records(names).map(parse).shuffle(40, seed=1)


def test_a_stream_stays_one() -> None:
    """Single records would take a stream of small ones longer."""
    tf.random.set_seed(5)  # tests before may have left other ones on ranks
    names = written("ram://stream")
    found = _sources.late_rows_of(parsed(names), batched=False, is_fixed=True)
    assert found is not None
    assert found.lengths is None  # all ranks read the records
    rows = taken(lambda: parsed(names))[0][0]
    of_ranks = hvd.allgather_object(sum(len(batch[1]) for batch in rows))
    assert sum(of_ranks) >= sum(COUNTS)


@pytest.mark.parametrize("shuffle", [None, "global", "blocks"])
def test_records_by_number(tmp_path: pathlib.Path, shuffle: Any) -> None:
    """Their rows and order are those of the same files on a disk."""

    def of(names: list[str]) -> Any:
        return lambda: hvd.data.records(names, shuffle=shuffle).map(parse)

    remote = taken(of(written("ram://by_number")))
    assert remote == taken(of(written(str(tmp_path))))


def test_a_rank_reads_its_own_records_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it knows where they begin."""
    names = written("ram://own")
    num_bytes = sum(tf.io.gfile.stat(name).length for name in names)
    asked: list[int] = []
    original = _remote_records.RemoteRecordFile._bytes

    def counted(self: Any, row: int, begin: int, end: int) -> bytes:
        asked.append(end - begin)
        return original(self, row, begin, end)

    monkeypatch.setattr(_remote_records.RemoteRecordFile, "_bytes", counted)
    data = hvd.data.records(names, shuffle="global").map(parse)
    share = hvd.shard(data, batch_size=4, policy="drop")
    list(share)
    asked.clear()
    list(share)
    assert 0 < sum(hvd.allgather_object(sum(asked))) <= num_bytes


def damaged_at(name: str, place: int) -> None:
    with tf.io.gfile.GFile(name, "rb") as file:
        data = bytearray(file.read())
    data[place] ^= 1
    removed(name)
    with tf.io.gfile.GFile(name, "wb") as out:
        out.write(bytes(data))


def test_damaged_data_are_told() -> None:
    name = written("ram://damaged")[0]
    damaged_at(name, 13)
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 0"):
        list(hvd.data.records(name))
    left = hvd.data.records(name, on_error="skip")
    assert int(left.cardinality()) == COUNTS[0] - 1


def test_what_cannot_be_indexed_is_told_on_all_ranks() -> None:
    name = written("ram://cut")[2]
    damaged_at(name, 0)
    with pytest.raises(hvd.DamagedFileError, match=r"ram://cut/2.*record 0"):
        hvd.data.records(name)
    with pytest.raises(hvd.InvalidArgumentError, match="ram://none"):
        hvd.data.records("ram://none/0.tfrecord")


def test_a_changed_file_is_indexed_anew() -> None:
    name = written("ram://changed")[0]
    assert int(hvd.data.records(name).cardinality()) == COUNTS[0]
    removed(name)
    with tf.io.TFRecordWriter(name) as writer:
        writer.write(b"0 0")
    assert int(hvd.data.records(name).cardinality()) == 1
