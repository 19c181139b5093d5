"""Commits of elastic training: which one counts, and what is on disk."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import pytest

from hvd_keras._values import object_format
from hvd_keras.elastic import ObjectState
from hvd_keras.elastic._callback_states import CallbackStates
from hvd_keras.elastic._commit_files import CommitFiles
from hvd_keras.elastic._commits import Commit, Commits
from hvd_keras.elastic._entrance import newest_of
from hvd_keras.elastic._errors import _comes_of
from hvd_keras.exceptions import (
    DamagedFileError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
)


def commit(epoch: int, count: int) -> Commit:
    header = object_format.encode({"count": count})
    return Commit.of((epoch, count), header, np.full(9, count, np.uint8))


@pytest.mark.parametrize(
    ("held", "newest"),
    [
        ([[], []], None),
        ([[(1, 1)], [(1, 1)]], (1, 1)),
        # All have written 2; one died before the other heard of it.
        ([[(1, 2)], [(1, 1), (1, 2)]], (1, 2)),
        # One has not written 2, so nobody may rely on it.
        ([[(1, 1)], [(1, 1), (1, 2)]], (1, 1)),
        # The last rank is new.
        ([[(1, 1), (1, 2)], [(1, 2), (1, 1)], []], (1, 2)),
        # The number of the membership goes before.
        ([[(1, 9), (2, 1)], [(2, 1), (1, 9)]], (2, 1)),
    ],
)
def test_the_newest_common_commit_counts(held, newest) -> None:
    assert newest_of(held) == newest


def test_damaged_memory_is_no_commit() -> None:
    commits = Commits()
    commits.put(commit(1, 1))
    assert commits.held() == [(1, 1)]
    commits.newest.data[3] ^= 1
    assert commits.held() == []


def test_a_lower_commit_does_not_replace_a_higher_one(
    tmp_path: pathlib.Path,
) -> None:
    files = CommitFiles(str(tmp_path / "commits"))
    files.write(commit(3, 1))
    files.finish()
    late = CommitFiles(str(tmp_path / "commits"))  # of a rank that was cut off
    late.write(commit(2, 7))
    late.finish()
    newest = files.newest()
    assert newest.number == (3, 1)
    assert newest.read_header() == {"count": 1}
    files.write(commit(3, 2))
    files.finish()
    files.write(commit(3, 3))
    files.finish()
    assert sorted(path.name for path in tmp_path.glob("commits/commit*")) == [
        "commit-00000003-00000002.hvd",
        "commit-00000003-00000003.hvd",
    ]
    files.delete()
    assert not (tmp_path / "commits").exists()


def _damage_checksum(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def _written(directory: pathlib.Path, *counts: int) -> CommitFiles:
    files = CommitFiles(str(directory))
    for count in counts:
        files.write(commit(1, count))
        files.finish()
    return files


@pytest.mark.parametrize("damage", [_damage_checksum, _cut, _empty])
def test_the_commit_before_a_damaged_one_is_taken(
    tmp_path: pathlib.Path,
    damage: Callable[[pathlib.Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = _written(tmp_path, 1, 2)
    damage(tmp_path / "commit-00000001-00000002.hvd")
    with caplog.at_level(logging.WARNING, "hvd_keras"):
        assert files.newest().number == (1, 1)
    (line,) = caplog.messages
    assert "00000002.hvd' is damaged" in line
    assert "one before" in line
    # Later commits do not push out the one that is whole.
    files.write(commit(2, 1))
    files.finish()
    assert (tmp_path / "commit-00000001-00000001.hvd").exists()
    files.delete()
    assert not tmp_path.exists()


@pytest.mark.parametrize("damage", [_damage_checksum, _cut, _empty])
def test_damaged_commits_alone_are_an_error(
    tmp_path: pathlib.Path, damage: Callable[[pathlib.Path], None]
) -> None:
    files = _written(tmp_path, 1, 2)
    for path in tmp_path.glob("*.hvd"):
        damage(path)
    with pytest.raises(DamagedFileError, match=r"00000002\.hvd.*Remove it"):
        files.newest()
    files.let_go()


def test_a_folder_or_link_in_the_way_is_told(tmp_path: pathlib.Path) -> None:
    files = _written(tmp_path, 1)
    in_the_way = tmp_path / "commit-00000099-00000099.hvd"
    in_the_way.mkdir()
    with pytest.raises(InvalidArgumentError, match="a folder; move"):
        files.check_places()
    in_the_way.rmdir()
    in_the_way.symlink_to(tmp_path / "commit-00000001-00000001.hvd")
    with pytest.raises(InvalidArgumentError, match="a link; move"):
        files.check_places()
    files.let_go()


def test_callbacks_go_back_to_what_they_remembered() -> None:
    stopping = keras.callbacks.EarlyStopping("loss", patience=3)
    stopping.on_train_begin()
    states = CallbackStates([stopping])
    states.note_first()
    stopping.wait, stopping.best = 2, 0.5
    kept = states.read()
    assert set(*states.changed(kept).values()) == {"wait", "best"}
    stopping.wait, stopping.best = 0, 0.25
    states.restore(kept)
    assert (stopping.wait, stopping.best) == (2, 0.5)


def test_a_new_rank_keeps_what_never_changes() -> None:
    first = keras.callbacks.CSVLogger("rank_0.csv")
    states = CallbackStates([first])
    states.note_first()
    first.keys = ["loss"]
    kept = states.read()
    own = keras.callbacks.CSVLogger("rank_3.csv")
    CallbackStates([own]).restore(kept, states.changed(kept))
    assert (own.filename, own.keys) == ("rank_3.csv", ["loss"])


def test_a_wrapped_error_tells_of_the_change() -> None:
    text = "INTERNAL: hvd_keras.exceptions.PeerLostError: rank 1 died"
    wrapped = RuntimeError("in a thread")
    wrapped.__cause__ = PeerLostError("rank 1 died")
    assert _comes_of(PeerLostError("rank 1 died"), PeerLostError)
    assert _comes_of(RuntimeError(text), PeerLostError)
    assert _comes_of(wrapped, PeerLostError)
    assert not _comes_of(MismatchError("shapes"), PeerLostError)


def test_object_state_restores_what_was_saved() -> None:
    state = ObjectState(epoch=0, seen=[1])
    state.epoch = 3
    state.seen.append(2)
    state.restore()
    assert (state.epoch, state.seen) == (0, [1])
    state.epoch = 4
    state.save()
    state.epoch = 5
    state.restore()
    assert state.epoch == 4
