"""Runs a function that came from another process, and hands over its result.

hvdrun starts `python -m hvd_keras._job.function_rank` with the packed function
as standard input. It came from the user's own process and, on other hosts,
through an agent that has proved itself; so it may be unpickled.
"""

from __future__ import annotations

import os
import sys

from hvd_keras import _rendezvous
from hvd_keras._job import state
from hvd_keras._job.packing import pack_error, pack_value, run_packed
from hvd_keras.config import Config


def main() -> None:
    """Runs the function as a rank that hvdrun has started."""
    call = sys.stdin.buffer.read()
    topology = _rendezvous.detect(os.environ)
    config = Config.from_environ(os.environ)
    try:
        value = run_packed(call)
        packed = pack_value(value, _present_rank(topology))
    except Exception as error:
        packed = pack_error(error, _present_rank(topology))
        _rendezvous.give_result(topology, config, packed)
        raise
    _rendezvous.give_result(topology, config, packed)


def _present_rank(topology: _rendezvous.Topology) -> int:
    # In an elastic job it changes; a member that has left has none.
    job = state.job()
    if job is not None:
        return job.topology.rank
    return topology.rank if topology.member is None else topology.member


if __name__ == "__main__":
    main()
