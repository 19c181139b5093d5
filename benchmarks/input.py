"""Measures what each rank reads of large data, and how long it takes.

    python benchmarks/input.py --np=2

It writes --rows rows of --bytes bytes into --files files of each kind, below
--folder, and reads an epoch of each pipeline --rounds times. Rank 0 prints a
JSON line for each: the most of any rank's megabytes and processor seconds, and
seconds, medians over the rounds. `--what` picks some of:

- `files`: nothing; it writes the files of `epochs` alone.
- `epochs`: the pipelines.
- `index`: seconds and bytes of an index, beside those of one reading.
- `resume`: seconds to the first batch at 90 % of an epoch; run it with two
  numbers of ranks.
- `many`: memory for --many records.
- `served`: two epochs of each pipeline, with links of its own to the files and
  nothing of them in memory, so that the first makes indexes and counts rows;
  rank 0 gives what all hosts received. `input_hosts.py` runs it.
- `pictures`: an epoch of `keras.utils.image_dataset_from_directory` over
  --pictures JPEG files of 256 x 256.
- `begin`: processor milliseconds to make a share, and to read an epoch of four
  tiny steps, most of which go to its start; beside tf.data alone.
- `fit`: `fit` of a small CNN on these files, in 64 x 64, with a core for each
  rank; images a second of all ranks. Run it with two numbers of ranks.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import pathlib
import resource
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import _common
import numpy as np
from absl import app, flags

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_integer("rows", 24_000, "Rows of all files.", 1)
flags.DEFINE_integer("bytes", 11_750, "Bytes of a row.", 8)
flags.DEFINE_integer("files", 8, "Files of a kind.", 1)
flags.DEFINE_integer("batch", 32, "Rows a rank has in a batch.", 1)
flags.DEFINE_integer("rounds", 3, "Timed epochs of each pipeline.", 1)
flags.DEFINE_integer("many", 10_000_000, "Records of `many`.", 1)
flags.DEFINE_integer("pictures", 2000, "JPEG files of `pictures`.", 1)
flags.DEFINE_string("folder", "", "Where files are; they stay. '': a new one.")
flags.DEFINE_list("what", "epochs,index,resume,many", "What to measure.")


def written(folder: pathlib.Path, ending: str) -> list[str]:
    """Returns the files of a kind; rank 0 writes those that are missing."""
    paths = [folder / f"{n}.{ending}" for n in range(FLAGS.files)]
    for n, path in enumerate(paths):
        if hvd.rank() or path.exists():
            continue
        random = np.random.default_rng(n)
        rows = (
            (number, number.to_bytes(8, "big") + random.bytes(FLAGS.bytes - 8))
            for number in range(n, FLAGS.rows, FLAGS.files)
        )
        if ending == "tar":
            write_tar(path, rows)
        else:
            write_records(path, rows, "GZIP" if ending == "gz" else "")
    hvd.barrier()
    return [str(path) for path in paths]


def write_records(path: pathlib.Path, rows: Iterator[Any], kind: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), kind) as writer:
        for _, data in rows:
            writer.write(data)


def write_tar(path: pathlib.Path, rows: Iterator[Any]) -> None:
    with tarfile.open(path, "w") as tar:
        for number, data in rows:
            member = tarfile.TarInfo(f"{number:08}.bin")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def parse(data: Any) -> Any:
    import tensorflow as tf

    values = tf.io.decode_raw(data, tf.uint8)
    values = tf.cast(tf.reshape(values, [FLAGS.bytes]), tf.float32)
    return tf.sqrt(values)[:64], values[7]


def pipelines(folder: pathlib.Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    import tensorflow as tf

    records = written(folder, "tfrecord")
    tars, packed = written(folder, "tar"), written(folder, "gz")

    def of_records(shuffle: str | None) -> Callable[[], Any]:
        return lambda: hvd.data.records(records, shuffle=shuffle).map(parse)

    def read_packed(name: Any) -> Any:
        return tf.data.TFRecordDataset(name, "GZIP").map(parse)

    def of_one() -> Any:
        return tf.data.TFRecordDataset(records).map(parse).shuffle(2000, seed=1)

    yield "TFRecordDataset, map, shuffle", of_one
    yield "the same with filter", lambda: of_one().filter(lambda x, y: y >= 0)
    for shuffle in (None, "global", "blocks"):
        yield f"records, shuffle={shuffle}", of_records(shuffle)
    yield (
        "records of tars, shuffle=global",
        lambda: hvd.data.records(tars, shuffle="global").map(
            lambda row: parse(row["bin"])
        ),
    )
    yield (
        "GZIP, TFRecordDataset",
        lambda: tf.data.TFRecordDataset(packed, "GZIP").map(parse),
    )
    yield "GZIP, files", lambda: hvd.data.files(packed, read_packed)


def used() -> list[float]:
    """Returns megabytes read, processor seconds and seconds so far."""
    text = pathlib.Path("/proc/self/io").read_text()
    own = resource.getrusage(resource.RUSAGE_SELF)
    return [
        int(text.split("rchar:")[1].split()[0]) / 1e6,
        own.ru_utime + own.ru_stime,
        time.perf_counter(),
    ]


def measured(work: Callable[[], Any]) -> list[float]:
    """Returns the most that any rank has used for some work."""
    _common.wait_for_all()
    before = used()
    work()
    own = [now - then for now, then in zip(used(), before, strict=True)]
    return [float(most) for most in _common.gather_over_ranks(own).max(axis=0)]


def tell(**values: Any) -> None:
    if hvd.rank() == 0:
        print(json.dumps({"ranks": hvd.size(), **values}), flush=True)


def run_epochs(folder: pathlib.Path) -> None:
    for name, make in pipelines(folder):
        run_share(name, hvd.shard(make(), batch_size=FLAGS.batch))


def run_share(name: str, share: Any) -> None:
    deque_of(share)
    rounds = [
        measured(functools.partial(deque_of, share))
        for _ in range(FLAGS.rounds)
    ]
    most = [round(statistics.median(each), 2) for each in zip(*rounds)]  # noqa: B905
    tell(
        pipeline=name,
        megabytes=most[0],
        processor_seconds=most[1],
        seconds=most[2],
    )


def received() -> float:
    """Returns the megabytes that came to this host so far."""
    text = pathlib.Path("/proc/self/net/dev").read_text()
    lines = (line.partition(":") for line in text.splitlines())
    of_cards = {name.strip(): rest.split() for name, _, rest in lines}
    return sum(
        int(fields[0]) / 1e6
        for name, fields in of_cards.items()
        if fields and fields[0].isdigit() and name != "lo"
    )


def run_served(folder: pathlib.Path) -> None:
    count = sum(1 for _ in pipelines(folder))
    for number in range(count):
        own = folder / f"served_{number}"
        if hvd.rank() == 0:
            own.mkdir()
            for path in filter(pathlib.Path.is_file, folder.iterdir()):
                os.link(path, own / path.name)
        hvd.barrier()
        name, make = next(itertools.islice(pipelines(own), number, None))
        data = sum(
            path.stat().st_size for path in own.glob(f"*.{_ending_of(name)}")
        )
        share: Any = None
        of_epochs = []
        for _ in range(2):
            if hvd.rank() == 0:
                pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
            _common.wait_for_all()
            before, begun = received(), time.perf_counter()
            if share is None:
                share = hvd.shard(make(), batch_size=FLAGS.batch)
            deque_of(share)
            seconds = time.perf_counter() - begun
            of_host = (received() - before) * (hvd.local_rank() == 0)
            found = _common.gather_over_ranks([of_host, seconds])
            of_all = float(found[:, 0].sum()) / (data / 1e6)
            of_epochs.append((round(of_all, 3), float(found[:, 1].max())))
        tell(pipeline=name, epochs=of_epochs)


def _ending_of(name: str) -> str:
    if "GZIP" in name:
        return "gz"
    return "tar" if "tars" in name else "tfrecord"


def deque_of(share: Any) -> None:
    """Reads all batches."""
    for _ in share:
        pass


def run_index(folder: pathlib.Path) -> None:
    import tensorflow as tf

    from hvd_keras.data import _formats
    from hvd_keras.data import _record_index as record_index
    from hvd_keras.data import _records as records

    for ending, kind in (("tfrecord", "tfrecord"), ("tar", "webdataset")):
        paths = written(folder, ending)
        scan = _formats.FORMS[kind].scan

        def make(paths: Any = paths, scan: Any = scan) -> None:
            for each in paths[hvd.rank() :: hvd.size()]:
                pathlib.Path(record_index.place_of(each, scan)).unlink(True)
            records.index_together(paths, hvd.global_process_set, scan)

        def read(paths: Any = paths, ending: str = ending) -> None:
            if ending == "tar":
                for path in paths:
                    with tarfile.open(path) as tar:
                        for member in tar:
                            of_row = tar.extractfile(member)
                            assert of_row is not None
                            of_row.read()
            else:
                deque_of(tf.data.TFRecordDataset(paths).batch(64))

        make()
        read()  # both from the cache of the file system
        of_index = min(measured(make)[2] for _ in range(3))
        of_reading = min(measured(read)[2] for _ in range(3))
        made, _ = record_index.indexes_of(paths, scan)
        size = sum(each.num_bytes for each in made) / 1e6
        tell(
            index_of=ending,
            seconds=round(of_index, 4),
            seconds_of_reading=round(of_reading, 4),
            bytes_a_megabyte=sum(len(each.blocks) for each in made) / size,
        )


def run_resume(folder: pathlib.Path) -> None:
    from hvd_keras.data import position

    row = FLAGS.rows * 9 // 10
    for name, make in pipelines(folder):
        share = hvd.shard(make(), batch_size=FLAGS.batch, elastic=True)
        next(iter(share))
        handle = position.handle_of(share)
        assert handle is not None
        rounds = []
        for epoch in range(FLAGS.rounds):
            handle.seek(position.Position(epoch, row))
            first = functools.partial(lambda s: next(iter(s)), share)
            rounds.append(measured(first))
        most = [statistics.median(each) for each in zip(*rounds)]  # noqa: B905
        tell(
            resume=name,
            row=row,
            megabytes=round(most[0], 2),
            seconds=round(most[2], 3),
        )


def run_many(folder: pathlib.Path) -> None:
    path = folder / "many.tfrecord"
    if hvd.rank() == 0 and not path.exists():
        write_records(path, iter([(0, b"x" * 100)]), "")
        record = path.read_bytes()
        with path.open("wb") as file:
            for _ in range(FLAGS.many // 10_000):
                file.write(record * 10_000)
    hvd.barrier()
    hvd.data.records(written(folder, "tfrecord"), shuffle="global")  # imports
    before = resident()
    begun = time.perf_counter()
    data = hvd.data.records(path, shuffle="global")
    seconds = time.perf_counter() - begun
    share = hvd.shard(data, batch_size=FLAGS.batch)
    next(iter(share))
    tell(
        many=int(data.cardinality()),
        mebibytes=round(resident() - before, 1),
        seconds=round(seconds, 2),
    )


def share_of_pictures(folder: pathlib.Path, size: int) -> Any:
    """Returns a rank's batches of JPEG files; rank 0 writes those first."""
    import keras
    import tensorflow as tf

    top = folder / "pictures"
    if hvd.rank() == 0 and not top.exists():
        random = np.random.default_rng(0)
        for kind in ("a", "b"):
            (top / kind).mkdir(parents=True)
        for number in range(FLAGS.pictures):
            coarse = random.integers(0, 255, (32, 32, 3), np.uint8)
            whole = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
            path = top / "ab"[number % 2] / f"{number:05}.jpg"
            path.write_bytes(tf.io.encode_jpeg(whole).numpy())
    hvd.barrier()
    data = keras.utils.image_dataset_from_directory(
        top, image_size=(size, size), batch_size=FLAGS.batch, seed=1, verbose=0
    )
    return hvd.shard(data, batch_size=FLAGS.batch, batched=True)


def run_pictures(folder: pathlib.Path) -> None:
    run_share("image_dataset_from_directory", share_of_pictures(folder, 224))


def run_begin(folder: pathlib.Path) -> None:
    del folder
    import tensorflow as tf

    size = 4 * hvd.size()  # of a batch of all ranks
    x, y = np.zeros((4 * size, 4), np.float32), np.arange(4 * size)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(size, seed=1)
    batches = rows.batch(size)
    makes: dict[str, Callable[[], Any]] = {
        "tf.data alone": lambda: rows.batch(size),
        "arrays": lambda: hvd.shard((x, y), batch_size=4),
        "rows": lambda: hvd.shard(rows, batch_size=4),
        "batches": lambda: hvd.shard(batches, batch_size=4, batched=True),
    }
    for name, make in makes.items():
        run_begin_of(name, make)


def run_begin_of(name: str, make: Callable[[], Any]) -> None:
    def read_ten_epochs() -> None:
        for _ in range(10):
            deque_of(share)

    deque_of(make())  # imports, and what is done once
    making = [measured(make)[1] for _ in range(2 * FLAGS.rounds)]
    share = make()
    deque_of(share)
    epochs = [measured(read_ten_epochs)[1] / 10 for _ in range(FLAGS.rounds)]
    tell(
        begin=name,
        making_ms=round(1e3 * statistics.median(making), 1),
        epoch_ms=round(1e3 * statistics.median(epochs), 1),
    )


def run_fit(folder: pathlib.Path) -> None:
    os.sched_setaffinity(0, {hvd.local_rank()})
    import keras

    share = share_of_pictures(folder, 64)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(share, callbacks=start, verbose=0)
    fit = functools.partial(model.fit, share, epochs=5, verbose=0)
    seconds = [measured(fit)[2] for _ in range(FLAGS.rounds)]
    count = 5 * FLAGS.pictures
    tell(fit="a CNN", images_a_second=round(count / statistics.median(seconds)))


def resident() -> float:
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def main(_: Any) -> None:
    _common.start(FLAGS.np)
    folder = FLAGS.folder or hvd.broadcast_object(tempfile.mkdtemp())
    path = pathlib.Path(folder)
    path.mkdir(exist_ok=True)
    runs = {
        "files": lambda folder: deque_of(pipelines(folder)),
        "served": run_served,
        "epochs": run_epochs,
        "index": run_index,
        "resume": run_resume,
        "many": run_many,
        "pictures": run_pictures,
        "begin": run_begin,
        "fit": run_fit,
    }
    for what in FLAGS.what:
        runs[what](path)


if __name__ == "__main__":
    app.run(main)
