"""Tars, Parquet and ArrayRecord files: indexes, rows by number, damage."""

from __future__ import annotations

import io
import pathlib
import tarfile
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras.data import _formats, records
from hvd_keras.data import _record_index as record_index
from hvd_keras.data._opened_files import blocks_of
from hvd_keras.data._tar_files import TarFile
from hvd_keras.exceptions import DamagedFileError, InvalidArgumentError


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(record_index, "_known", {})


Members = list[tuple[str, bytes]]


def written(path: pathlib.Path, members: Members, form: int) -> str:
    with tarfile.open(path, "w", format=form) as tar:
        folder = tarfile.TarInfo("a folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def members_of(count: int, size: int, name: str = "{}") -> Members:
    return [
        (name.format(f"{number:05}") + suffix, data)
        for number in range(count)
        for suffix, data in (
            (".cls", b"%d" % number),
            (".seg.png", bytes([number % 256]) * (size + number)),
        )
    ]


def rows_in(data: Any) -> list[Any]:
    return list(data.as_numpy_iterator())


@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
@pytest.mark.parametrize("name", ["{}", "dir.x/{}", "d" * 130 + "/{}", "é{}"])
def test_members_of_a_key_are_a_row(
    form: int, name: str, tmp_path: pathlib.Path
) -> None:
    members = members_of(9, 700, name)
    data = records(written(tmp_path / "x.tar", members, form))
    found = rows_in(data)
    assert len(found) == 9
    for number, row in enumerate(found):
        assert row == {
            "__key__": name.format(f"{number:05}").encode(),
            "cls": members[2 * number][1],
            "seg.png": members[2 * number + 1][1],
        }


def test_an_index_of_a_tar_is_small(tmp_path: pathlib.Path) -> None:
    path = written(
        tmp_path / "x.tar", members_of(300, 30_000), tarfile.PAX_FORMAT
    )
    form = _formats.FORMS["webdataset"]
    (index,), _ = record_index.indexes_of([path], form.scan)
    assert index.num_records == 300
    assert len(index.blocks) <= index.num_bytes / (1 << 20) * 16 + 16
    file = TarFile(path, 1)
    numbers = [299, 3, 150, 151]
    for number in numbers:
        ((key, _, picture),) = file.read([number], index)
        assert key == f"{number:05}".encode()
        assert len(picture) == 30_000 + number
    record_index.forget([path], form.scan)  # it was kept
    assert record_index.indexes_of([path], form.scan) == ([index], [])


def damaged(path: pathlib.Path, how: str) -> None:
    """Damages what belongs to row 4 or stands behind it."""
    content = bytearray(path.read_bytes())
    at = 512 + 4 * (512 + 512 + 512 + 1024)  # a folder, and 4 rows
    if how == "header":
        content[at + 3] ^= 1
    elif how == "second header":
        content[at + 1024 + 3] ^= 1
    elif how == "junk":
        content[at : at + 1024] = b"x" * 1024
    elif how == "cut in data":
        del content[at + 1700 :]
    else:
        del content[at + 100 :]
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["header", "second header", "junk", "cut in data", "cut in header"]
)
def test_damage_in_a_tar(how: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.tar"
    written(path, members_of(9, 700), tarfile.USTAR_FORMAT)
    damaged(path, how)
    with pytest.raises(
        DamagedFileError, match=r"/x\.tar: record [34], at byte"
    ):
        records(path)
    found = rows_in(records(path, on_error="skip"))
    assert [row["cls"] for row in found] == [b"0", b"1", b"2", b"3"][
        : len(found)
    ]
    assert len(found) >= 3


def test_a_row_that_lacks_a_member(tmp_path: pathlib.Path) -> None:
    members = members_of(6, 700)
    del members[7]
    path = written(tmp_path / "x.tar", members, tarfile.USTAR_FORMAT)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"/x\.tar: record 3, at byte 8192: it has no \.seg\.png",
    ):
        rows_in(records(path))
    found = rows_in(records(path, on_error="skip"))
    assert [row["cls"] for row in found] == [b"0", b"1", b"2", b"4", b"5"]


def parquet_of(path: pathlib.Path, **columns: Any) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table(columns),
        path,
        row_group_size=10,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    return str(path)


def test_columns_of_parquet(tmp_path: pathlib.Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    numbers = np.arange(35)
    path = parquet_of(
        tmp_path / "x.parquet",
        small=pyarrow.array(numbers, pyarrow.int8()),
        real=numbers / 2,
        is_odd=numbers % 2 == 1,
        text=[f"ä{n}" for n in numbers],
        data=[b"%d" % n for n in numbers],
        pair=pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(np.arange(70, dtype=np.float32)), 2
        ),
    )
    data = records(path, shuffle="blocks", window=2)
    spec = data.element_spec
    assert spec["small"] == tf.TensorSpec([], tf.int8)
    assert spec["pair"] == tf.TensorSpec([2], tf.float32)
    found = sorted(rows_in(data), key=lambda row: row["small"])
    for n, row in enumerate(found):
        assert row["small"] == n
        assert row["real"] == n / 2
        assert row["is_odd"] == n % 2
        assert row["text"].decode() == f"ä{n}"
        assert row["data"] == b"%d" % n
        assert row["pair"].tolist() == [2 * n, 2 * n + 1]


@pytest.mark.parametrize("what", ["lists", "times"])
def test_columns_that_make_no_tensor(what: str, tmp_path: pathlib.Path) -> None:
    column: Any = [[1], [1, 2]]
    if what == "times":
        column = np.array([1, 2], "datetime64[s]")
    path = parquet_of(tmp_path / "x.parquet", column=column)
    with pytest.raises(InvalidArgumentError, match="column 'column' must have"):
        records(path)


def test_threads_read_a_parquet_file_one_after_the_other(
    tmp_path: pathlib.Path,
) -> None:
    path = parquet_of(tmp_path / "x.parquet", number=np.arange(600))
    rows = records(path, window=1, shuffle="global", seed=1)
    rows = rows.map(lambda row: row["number"], num_parallel_calls=8)
    for _ in range(3):
        assert sorted(rows_in(rows)) == list(range(600))


def test_damage_in_parquet(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"{n:0100}" for n in range(40)]
    parquet_of(path, text=texts)
    whole = path.read_bytes()
    place = whole.index(texts[15].encode())
    path.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"x\.parquet: record 10, at byte"
    ):
        rows_in(records(path))
    found = rows_in(records(path, on_error="skip"))
    left = texts[:10] + texts[20:]
    assert [row["text"].decode() for row in found] == left
    path.write_bytes(whole[:-9])
    with pytest.raises(DamagedFileError, match=r"x\.parquet: record 0, at"):
        records(path)
    path.write_bytes(whole)
    other = tmp_path / "y.parquet"
    other.write_bytes(whole[:500])
    assert len(rows_in(records([other, path], on_error="skip"))) == 40


def test_damage_in_array_records(tmp_path: pathlib.Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    path = tmp_path / "x.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for number in range(20):
        writer.write(b"%05d" % number * 40_000)
    writer.close()
    whole = path.read_bytes()
    place = whole.index(b"%05d" % 7 * 100)
    path.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"x\.array_record: record \d"
    ):
        rows_in(records(path))
    found = rows_in(records(path, on_error="skip"))
    numbers = [int(row[:5]) for row in found]
    assert numbers == [n for n in range(20) if n != 7]
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFileError, match=r"x\.array_record: record 0"):
        records(path)


def test_a_missing_package_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, package in (("x.parquet", "pyarrow"), ("x.array_record", "")):
        with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
            records(tmp_path / name)


def test_kinds_are_told_apart(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="of one kind"):
        records([tmp_path / "x.tar", tmp_path / "y.tfrecord"])
    parts = ("x.array_record-00000-of-00002", "y.tar-00001-of-00002")
    with pytest.raises(ValueError, match="array_record, webdataset"):
        records([tmp_path / name for name in parts])
    for name in ("x.tfrecord.gz", "x.tgz", "x.tar.zst", "x.gz-0-of-1"):
        with pytest.raises(ValueError, match="not compressed as a whole"):
            records(tmp_path / name)
    path = written(tmp_path / "x", members_of(3, 5), tarfile.USTAR_FORMAT)
    assert len(rows_in(records(path, kind="webdataset"))) == 3


@pytest.mark.parametrize("size", [1000, 100_000])
def test_indexes_of_ten_million_records_are_small(size: int) -> None:
    count, per_file = 10_000_000, 100_000
    indexes = []
    for _ in range(count // per_file):
        each_block = max((1 << 20) // size, 4)
        firsts = np.arange(0, per_file, each_block)
        blocks = np.stack([firsts * size, firsts], 1)
        indexes.append(
            record_index.Index(
                per_file * size, 0, per_file, 0, blocks.tobytes()
            )
        )
    tracemalloc.start()
    numbering = _formats.Numbering(indexes)
    assert numbering.num_rows == count
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(len(index.blocks) for index in indexes)
    assert held + most <= 50 << 20, (held, now, most)
    assert held <= 32 * count * size / (1 << 20)
    assert len(blocks_of(indexes[0])) > 90
