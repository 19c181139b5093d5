"""Commits of elastic training: which one counts, and what is on disk."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import pytest

from hvd_keras._values import object_format
from hvd_keras.elastic import ObjectState
from hvd_keras.elastic._callback_states import CallbackStates
from hvd_keras.elastic._commit_files import CommitFiles
from hvd_keras.elastic._commits import Commit, Commits
from hvd_keras.elastic._entrance import newest_of
from hvd_keras.elastic._errors import is_change
from hvd_keras.exceptions import MismatchError, PeerLostError


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
    assert [path.name for path in (tmp_path / "commits").iterdir()] == [
        "commit-00000003-00000002.hvd"
    ]
    files.delete()
    assert not (tmp_path / "commits").exists()


def test_half_a_file_is_no_commit(tmp_path: pathlib.Path) -> None:
    files = CommitFiles(str(tmp_path))
    files.write(commit(1, 1))
    files.finish()
    (path,) = tmp_path.iterdir()
    (tmp_path / "commit-00000001-00000002.hvd").write_bytes(
        path.read_bytes()[:-1]
    )
    assert files.newest().number == (1, 1)


def test_what_a_killed_rank_was_writing_does_not_stay(
    tmp_path: pathlib.Path,
) -> None:
    directory = tmp_path / "commits"
    directory.mkdir()
    for count in (1, 3):
        name = f".partial.commit-00000001-0000000{count}.hvd"
        (directory / name).write_bytes(b"half")
    files = CommitFiles(str(directory))
    assert files.newest() is None
    files.write(commit(1, 2))
    files.finish()
    # The third may be of a rank that is still there.
    assert sorted(path.name for path in directory.iterdir()) == [
        ".partial.commit-00000001-00000003.hvd",
        "commit-00000001-00000002.hvd",
    ]
    files.delete()
    assert not directory.exists()


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
    assert is_change(PeerLostError("rank 1 died"))
    assert is_change(RuntimeError(text))
    assert is_change(wrapped)
    assert not is_change(MismatchError("shapes"))


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
