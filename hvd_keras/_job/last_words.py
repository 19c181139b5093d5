"""What a rank tells hvdrun's user at its end, so that nobody has to scroll."""

from __future__ import annotations

from collections.abc import Callable

from hvd_keras import _native, _rendezvous
from hvd_keras._common import log, remarks, training_signs
from hvd_keras._job import state, written_files
from hvd_keras._job.state import Job
from hvd_keras._rendezvous import ReportKind
from hvd_keras.exceptions import NotInitializedError

_FEWEST = 4  # sums: fewer may be equal by chance

# Called before the others, while the core still runs.
at_end: list[Callable[[Job], None]] = []
_has_shared = False  # values that models are made of, in any job
_num_before = 0  # such values, when training began
_has_broadcast = False  # a variable or an object, in any job
_num_same = 0  # sums to which all ranks brought the same values
_has_other = False  # some were not so, or nobody knows


def _note_beginning() -> None:
    """Notes what was shared before: a broadcast of first values trains none."""
    global _num_before
    if state.job() is not None:
        _num_before = _native.core().num_shared()


training_signs.at_sign.append(_note_beginning)


def num_steps() -> int:
    """Returns how many steps of a training all ranks have made together."""
    try:
        return int(_native.core().stats()["num_steps"])
    except NotInitializedError:  # the job has failed
        return 0


def num_updates() -> int:
    """Returns how often ranks may have trained together: steps, or sums."""
    if steps := num_steps():
        return steps
    if not (
        training_signs.has_broadcast_weights or training_signs.reduces_by_hand()
    ):
        return 0  # perhaps each trains a model of its own
    return max(0, int(_native.core().num_shared()) - _num_before)


def note(job: Job) -> None:
    """Notes what this rank has done in a job whose core still runs."""
    global _has_shared, _has_broadcast, _num_same, _has_other
    for look in at_end:
        look(job)
    core = _native.core()
    num_shared, num_same = core.num_shared(), core.num_same()
    num_before = 0 if num_steps() else _num_before
    _has_shared |= num_shared > num_before or job.topology.size == 1
    num_bytes = core.num_broadcast_bytes()
    _num_same += num_same
    _has_other |= num_shared > 0 and num_same == 0
    _has_broadcast |= num_bytes > 0
    training_signs.note_broadcast(num_bytes)


def tell(job: Job) -> None:
    """Tells it; where hvdrun is not there, logs what nobody has read."""
    found = _found()
    for about, text in found.items():
        # One rank may train for the others.
        is_of_each = about == remarks.TRAINS_ALONE and job.topology.size > 1
        remarks.keep(text, about, fewest=2 if is_of_each else 1)
    written_files.tell()
    for one in remarks.take():
        # Of what has one cause, one line is enough.
        if any(one.about.startswith(f"{about} ") for about in found):
            continue
        told = _rendezvous.tell(
            job.topology,
            job.config,
            state.generation(),
            ReportKind.REMARKS,
            one.packed(),
        )
        if not told and found.get(one.about) == one.text:
            log.notice(one.text)


def _found() -> dict[str, str]:
    """Returns what only the whole training shows: a text for each subject."""
    if training_signs.apart is not None:
        return {remarks.TRAINS_ALONE: training_signs.apart.text}
    training = training_signs.first or training_signs.gradient
    if training is None:
        return {}
    at = f" at {training.place}" if training.place else ""
    received = f"Received: {training.what}{at}."
    is_meant = training.is_of_others or training_signs.has_own_sets
    if not (_has_shared or is_meant):
        what, cure = "reduced no gradient", training.cure
        if not _has_broadcast:
            what += " and broadcast no variable"
            cure += ", and broadcast the first values"
        alone = (
            f"Each rank has trained a model of its own: it {what}. {cure}. If "
            "each shall train one alone, see docs/hyperparameters.md. "
            f"{received}"
        )
        return {remarks.TRAINS_ALONE: alone}
    has_dealt = training_signs.trains_on_share
    if _num_same >= _FEWEST and not _has_other and not has_dealt:
        same = (
            "All ranks have trained on the same rows, or all rows are alike: "
            "they brought the same "
            f"gradients to all {_num_same} sums. For the same rows, "
            f"{training_signs.cure_of_whole_data()}; where each rank draws "
            f"rows of its own, add `hvd.rank()` to the seed. {received}"
        )
        return {remarks.SAME_DATA: same}
    return {}
