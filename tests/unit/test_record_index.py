"""The index of TFRecord files: what is kept, and when it is made anew."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from hvd_keras.data import _record_index as record_index
from hvd_keras.exceptions import DamagedFileError, InvalidArgumentError


@pytest.fixture(autouse=True)
def cache(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(record_index, "_known", {})
    return folder


def written(path: pathlib.Path, records: list[bytes]) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def index_of(path: str, *, changed: bool = False) -> record_index.Index:
    (index,), found = record_index.indexes_of([path])
    assert found == [path] * changed
    return index


def kept(path: str) -> pathlib.Path:
    return pathlib.Path(record_index.place_of(os.path.realpath(path)))


def test_an_index_is_small_and_kept(tmp_path: pathlib.Path) -> None:
    lengths = [number * 7919 % 40_000 for number in range(300)]
    path = written(tmp_path / "x", [b"x" * length for length in lengths])
    index = index_of(path)
    assert index.num_bytes == os.path.getsize(path) > 5 << 20
    assert index.num_records == 300
    assert len(index.blocks) <= index.num_bytes / (1 << 20) * 16 + 16
    assert record_index.decode(kept(path).read_bytes()) == index
    record_index.forget([path])
    before = kept(path).stat()
    assert index_of(path) == index
    assert kept(path).stat() == before


@pytest.mark.parametrize("records", [[], [b""], [b""] * 9, [b"a", b"", b"b"]])
def test_files_with_little(
    tmp_path: pathlib.Path, records: list[bytes]
) -> None:
    path = written(tmp_path / "x", records)
    assert index_of(path).num_records == len(records)


def test_a_changed_file_is_indexed_anew(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "x", [b"a"])
    first = index_of(path)
    written(tmp_path / "x", [b"a", b"b"])
    second = index_of(path, changed=True)
    assert (first.num_records, second.num_records) == (1, 2)
    record_index.forget([path])
    assert index_of(path) == second
    written(tmp_path / "x", [b"c", b"d"])  # as long as before
    os.utime(path, ns=(0, second.changed_ns + 1))
    record_index.forget([path])
    third = index_of(path, changed=True)
    assert third.fingerprint != second.fingerprint


def test_other_data_have_other_fingerprints(tmp_path: pathlib.Path) -> None:
    data = [[b"a", b"b"], [b"b", b"a"], [b"a"], [b"a", b"bb"]]
    found = {
        index_of(written(tmp_path / str(number), each)).fingerprint
        for number, each in enumerate(data)
    }
    assert len(found) == len(data)
    copy = written(tmp_path / "copy", data[0])
    assert index_of(copy).fingerprint in found


def test_a_torn_file_is_told(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "x", [b"first", b"second"])
    os.truncate(path, os.path.getsize(path) - 3)
    with pytest.raises(DamagedFileError, match=r"/x: record 1, at byte 21:"):
        index_of(path)
    assert not kept(path).exists()


def test_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "none"), "gs://bucket/x"):
        with pytest.raises(InvalidArgumentError):
            index_of(path)


@pytest.mark.parametrize("damage", [b"", b"hvdrec01", b"x" * 99, None])
def test_a_damaged_index_is_made_anew(
    tmp_path: pathlib.Path, damage: bytes | None
) -> None:
    path = written(tmp_path / "x", [b"a", b"b"])
    index = index_of(path)
    data = kept(path).read_bytes()
    if damage is None:
        damage = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    kept(path).write_bytes(damage)
    record_index.forget([path])
    assert index_of(path) == index
    assert kept(path).read_bytes() == data


def test_a_folder_that_cannot_be_written(
    tmp_path: pathlib.Path, cache: pathlib.Path
) -> None:
    cache.write_text("no folder")  # for root too
    path = written(tmp_path / "x", [b"a", b"b"])
    assert index_of(path).num_records == 2
    record_index.forget([path])
    assert index_of(path).num_records == 2


def test_two_processes_index_at_once(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "x", [b"x" * 1000] * 3000)
    program = (
        "import sys; from hvd_keras.data import _record_index as index; "
        "[(found := index.indexes_of(sys.argv[1:])[0][0], "
        "index.forget(sys.argv[1:]), "
        "index._keep(index.place_of(sys.argv[1]), found)) for _ in range(50)]; "
        "print(found.num_records)"
    )
    command = [sys.executable, "-c", program, os.path.realpath(path)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in running] == ["3000\n"] * 2
    index = record_index.decode(kept(path).read_bytes())
    assert index == index_of(path)
    assert os.listdir(kept(path).parent) == [kept(path).name]


def test_what_another_rank_has_found(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "x", [b"a"])
    index = index_of(path)
    os.utime(path, ns=(0, 1))  # a copy has a time of its own
    record_index.learn(path, record_index.encode(index))
    assert index_of(path).changed_ns == 1
    record_index.learn(path, None)
    with pytest.raises(InvalidArgumentError, match="all ranks"):
        index_of(path)
    record_index.forget([path])
    assert index_of(path, changed=True).num_records == 1
