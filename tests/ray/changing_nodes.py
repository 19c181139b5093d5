"""Trains on a cluster of Ray that gets a node and loses it.

    python changing_nodes.py FOLDER

Prints as JSON what became of the ranks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import elastic_training
import ray
from ray.cluster_utils import Cluster

from hvd_keras.ray import ElasticRayExecutor

_LIMIT_SECONDS = 180.0


def wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


def change(cluster: Cluster, folder: Path) -> float:
    """Adds a node, removes it again, and ends the training.

    Returns:
        How many cores Ray had left when there were two nodes.
    """
    try:
        wait(lambda: 1 in last_sizes(folder))
        node = cluster.add_node(num_cpus=1)
        wait(lambda: last_sizes(folder) == [2, 2])
        cpus = ray.available_resources().get("CPU", 0.0)
        cluster.remove_node(node)
        wait(lambda: 1 in last_sizes(folder))
        return float(cpus)
    finally:
        (folder / "stop").touch()


def last_sizes(folder: Path) -> list[int]:
    """Returns the size in the last step of each process."""
    steps = elastic_training.noted(folder).values()
    return [of_process[-1][2] for of_process in steps if of_process]


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    ray.init(address=cluster.address)
    executor = ElasticRayExecutor(
        ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2)
    )
    executor.start()
    with ThreadPoolExecutor() as pool:  # Ray adds nodes in the main thread
        run = pool.submit(executor.run, elastic_training.count, [str(folder)])
        num_cpus = change(cluster, folder)
        results = run.result()
    executor.shutdown()
    steps = elastic_training.noted(folder)
    pid = min(steps, key=lambda pid: steps[pid][0])
    sizes = [size for _, _, size in steps[pid]]
    found = {
        "results": results,
        "pid": pid,
        "sizes": [s for i, s in enumerate(sizes) if [s] != sizes[i - 1 : i]],
        "num_steps": len(sizes),
        "cpus": num_cpus,
    }
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
