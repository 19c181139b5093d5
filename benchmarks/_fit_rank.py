"""One rank of `hosts.py --fit`: trains the CNN of `fit.py` when it is told to.

    hvdrun ... python benchmarks/_fit_rank.py TURN ROUNDS STEPS WAYS...

Jobs take turns within seconds, so that what slows the machine slows all alike:
a round begins when the file TURN.<round> is there, and ends with
TURN.<round>.done. In round 0 nothing is timed. A way is `alone`, without
reductions, or a compression. Rank 0 prints a JSON line: the milliseconds of a
step of each round on the slowest rank, by way, and the parameters of the CNN.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import _common
import fit

import hvd_keras as hvd


def main(turn: str, num_rounds: int, num_steps: int, ways: list[str]) -> None:
    fit.FLAGS([sys.argv[0], f"--steps={num_steps}"])
    hvd.init()
    models = {
        way: fit.make_model(way != "alone", way if way != "alone" else "none")
        for way in ways
    }
    data = fit.make_data(has_rows=True)
    ms: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(num_rounds + 1):
        begins = pathlib.Path(f"{turn}.{number}")
        while not begins.exists():
            time.sleep(0.01)
        for way, model in models.items():
            _common.wait_for_all()
            start = time.perf_counter()
            model.fit(data, verbose=0)
            ms[way].append(1e3 * (time.perf_counter() - start) / num_steps)
        _common.wait_for_all()
        if hvd.rank() == 0:
            pathlib.Path(f"{begins}.done").touch()
    slowest = {
        way: _common.gather_over_ranks(of_way).max(axis=0)[1:].tolist()
        for way, of_way in ms.items()
    }
    if hvd.rank() == 0:
        parameters = int(models[ways[0]].count_params())
        print(json.dumps({"ms": slowest, "parameters": parameters}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
