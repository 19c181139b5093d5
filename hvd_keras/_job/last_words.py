"""What a rank tells hvdrun's user at its end, so that nobody has to scroll."""

from __future__ import annotations

from hvd_keras import _native, _rendezvous
from hvd_keras._common import log, remarks, training_signs
from hvd_keras._job import state
from hvd_keras._job.state import Job
from hvd_keras._rendezvous import ReportKind

_has_shared = False  # values that models are made of, in any job


def note(job: Job) -> None:
    """Notes what this rank has done in a job whose core still runs."""
    global _has_shared
    _has_shared |= _native.core().num_shared() > 0 or job.topology.size == 1


def tell(job: Job) -> None:
    """Tells it; where hvdrun is not there, logs what nobody has read."""
    training = training_signs.first
    if training is not None and not (_has_shared or training.is_of_others):
        at = f" at {training.place}" if training.place else ""
        text = (
            "Each rank has trained a model of its own: it reduced no gradient "
            f"and broadcast no variable. {training.cure}, and broadcast the "
            f"first values. Received: {training.what}{at}."
        )
        remarks.keep(text, remarks.TRAINS_ALONE)
    for one in remarks.take():
        told = _rendezvous.tell(
            job.topology,
            job.config,
            state.generation(),
            ReportKind.REMARKS,
            one.packed(),
        )
        if not told and one.about == remarks.TRAINS_ALONE:
            log.notice(one.text)
