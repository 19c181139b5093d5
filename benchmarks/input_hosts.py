"""Measures what two hosts receive from a third, which has the files.

    sudo python benchmarks/input_hosts.py --rate=1gbit

The hosts are network namespaces of this machine, so this needs root; sshfs
mounts the files of the third on the others (apt-get install sshfs). No host
sends more than --rate. Each pipeline of `input.py` reads two epochs, with files
that no cache has; only the first makes indexes, or counts rows. The table has
what the two hosts received together, with what they exchange to agree, over the
bytes of the data, and the seconds of the slowest rank, over those that the wire
needs for the data.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from _host_jobs import HERE, Network, json_lines, run
from absl import app, flags
from network import NAMES

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 1, "Ranks of a host.", 1)
flags.DEFINE_string("rate", "1gbit", "What a host may send.")
flags.DEFINE_integer("rows", 24_000, "Rows of all files.", 1)
flags.DEFINE_integer("bytes", 11_750, "Bytes of a row.", 8)
NUM_HOSTS = 2
SERVER = 2


def benchmark(what: str, folder: pathlib.Path) -> list[str]:
    return [
        *(str(HERE / "input.py"), "--np=1"),
        *(f"--what={what}", f"--folder={folder}"),
        *(f"--rows={FLAGS.rows}", f"--bytes={FLAGS.bytes}"),
    ]


def served(network: Network, files: pathlib.Path) -> str:
    """Returns what the job on the two hosts prints."""
    mounted = network.folder / "mounted"
    mounted.mkdir()
    # The mounts of a host are its own, and end with it.
    return run(
        network,
        FLAGS.np,
        *benchmark("served", mounted),
        num_hosts=NUM_HOSTS,
        before=f"export XDG_CACHE_HOME={network.folder}/cache$0"
        f" && sshfs {NAMES[SERVER]}:{files} {mounted}",
    )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    bits_a_second = 1e9 * float(FLAGS.rate.removesuffix("gbit"))
    wire = FLAGS.rows * FLAGS.bytes * 8 / bits_a_second
    with tempfile.TemporaryDirectory(prefix="hvd-input-") as folder:
        files = pathlib.Path(folder) / "files"
        subprocess.run([sys.executable, *benchmark("files", files)], check=True)
        network = Network(pathlib.Path(folder), NUM_HOSTS + 1)
        try:
            network.start_sshd(SERVER)
            with network.shaped(FLAGS.rate):
                output = served(network, files)
        finally:
            network.close()
    heads = "pipeline", "first", "/ wire", "second", "/ wire"
    print("{:33} {:>6} {:>7} {:>7} {:>7}".format(*heads))
    for found in json_lines(output):
        (first, of_first), (second, of_second) = found["epochs"]
        print(
            f"{found['pipeline']:33} {first:6.3f} {of_first / wire:7.2f} "
            f"{second:7.3f} {of_second / wire:7.2f}"
        )


if __name__ == "__main__":
    app.run(main)
