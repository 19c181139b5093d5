"""`hvdrun --verify` on right programs and on programs with a mistake."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from jobs import clean_environ

from hvd_keras._verify.compare import NEEDS_NUDGED, Verdict, compare
from hvd_keras._verify.records import MAX_ELEMENTS, Writer, read

ROOT = Path(__file__).parents[1]
SITE = ROOT / "hvd_keras" / "distribution" / "_site"


def hvdrun(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hvd_keras.run", *arguments],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.parametrize(
    "backend",
    [
        "torch",
        pytest.param("tensorflow", marks=pytest.mark.thorough),
        pytest.param("jax", marks=pytest.mark.thorough),
    ],
)
def test_mistakes_are_named_and_the_rest_is_equal(
    backend: str, tmp_path: Path
) -> None:
    """Both jobs run all programs: frameworks take long to start."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    listing = "from verify.programs import *; import json; print(json.dumps([list(RIGHT), {n: w for n, (_, w) in WRONG.items()}]))"  # noqa: E501
    settings = {
        "KERAS_BACKEND": backend,
        "HVD_STALL_SHUTDOWN_TIME_SECONDS": "60",
    }
    own = clean_environ(**settings)["PYTHONPATH"]
    settings["PYTHONPATH"] = os.pathsep.join([str(SITE), own, f"{ROOT}/tests"])
    listed = subprocess.run(
        [sys.executable, "-c", listing],
        env=clean_environ(**settings),
        capture_output=True,
        text=True,
        check=True,
    )
    right, wrong = json.loads(listed.stdout.splitlines()[-1])
    assert len(right) >= 5
    assert len(wrong) >= 20
    (tmp_path / "first").mkdir()
    settings["HVD_VERIFY"] = str(tmp_path / "first")
    settings["HVD_VERIFY_STEPS"] = "10"

    def run(num_ranks: int, *names: str, **more: str) -> None:
        command = [sys.executable, "-m", "verify.rank", str(tmp_path), *names]
        done = hvdrun("-np", str(num_ranks), "--", *command, **settings, **more)
        assert done.returncode == 0, done.stderr[-3000:]

    def found(name: str) -> Verdict:
        errors = list((tmp_path / name).glob("*.error"))
        failed = ["2 ranks"] * any("rank" in e.name for e in errors)
        failed += ["one process"] * any("one" in e.name for e in errors)
        return compare(tmp_path / name, failed)

    run(2)
    run(1, HVD_VERIFY_RANKS="2")
    verdicts = {name: found(name) for name in (*right, *wrong)}
    number = 0
    while names := [
        n for n, v in verdicts.items() if v.status == 1 and v.is_open
    ]:
        number += 1
        run(1, *names, HVD_VERIFY_RANKS="2", HVD_VERIFY_NUDGE=str(number))
        verdicts |= {name: found(name) for name in names}
    alarms = {
        name: verdicts[name].text for name in right if verdicts[name].status
    }
    assert alarms == {}
    missed = {
        name: (verdicts[name].text, words)
        for name, words in wrong.items()
        if verdicts[name].status == 0
        or not all(word in verdicts[name].text for word in words)
    }
    assert missed == {}


SCRIPT = """
import keras, numpy as np
import hvd_keras as hvd
hvd.init({init})
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(1000, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
sgd = keras.optimizers.SGD(0.01 * hvd.size())
model.compile(hvd.DistributedOptimizer(sgd{op}), "mse", jit_compile={jit})
average = hvd.callbacks.MetricAverageCallback()
data = hvd.shard((x, x[:, :1]), batch_size=8, shuffle=True{shard})
for _ in range(100):
    model.fit(data, epochs=1000, callbacks=[average], verbose=0)
    print("fitted", hvd.size())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def write(script: Path, **parts: str) -> None:
    defaults = {"init": "", "op": "", "jit": "False", "shard": ""}
    script.write_text(SCRIPT.format(**{**defaults, **parts}))


def verify(script: Path, *options: str) -> tuple[int, str]:
    done = hvdrun(
        "--verify", "-np", "2", *options, "--", sys.executable, str(script),
        KERAS_BACKEND="torch",
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_script_that_never_ends_is_compared(script: Path) -> None:
    write(script)
    status, output = verify(script, "--json", "--verify-steps", "4")
    assert status == 0, output
    (line,) = (each for each in output.splitlines() if each[:1] == "{")
    result = json.loads(line)
    assert result["status"] == "equal"
    assert result["steps"] == 12
    assert result["text"].startswith("Equal to one process: 12 steps")
    assert output.count("fitted 2") == 9  # on both ranks, and on one process


def test_a_difference_ends_with_1(script: Path) -> None:
    write(script, op=", op=hvd.Sum")
    status, output = verify(script, "--verify-steps", "4")
    assert status == 1
    assert "2 ranks differ from one process. Step 1: gradient" in output
    assert "summed over 2 ranks" in output


def test_what_cannot_be_compared_ends_with_2(script: Path) -> None:
    write(
        script,
        init="process_sets=[[0]]",
        shard=", process_set=hvd.process_set_by_id(1)",
    )
    status, output = verify(script)
    assert status == 2
    assert "needs data that all ranks share" in output
    assert "Not compared: the script failed on 2 ranks" in output
    script.write_text("import hvd_keras as hvd, keras; hvd.init()")
    status, output = verify(script)
    assert status == 2
    assert "took no step" in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-np", "1"], "two ranks or more"),
        (["-np", "2", "--min-np", "1"], "fixed number of ranks"),
        (["-np", "2", "--verify-steps", "1"], "2 or more"),
        (["-np", "4", "-H", "a:2,b:2"], "this host alone"),
    ],
)
def test_jobs_that_cannot_be_compared_are_refused(
    options: list[str], words: str
) -> None:
    done = hvdrun("--verify", *options, "--", "true")
    assert done.returncode == 2
    assert words in done.stderr


# ---- Records ----


def records(folder: Path, name: str, *events: tuple) -> None:  # type: ignore[type-arg]
    writer = Writer(folder / name)
    for kind, key, arrays, step in events:
        writer.add(kind, key, arrays, step=step)


def step(number: int, value: float = 1.0) -> list[tuple]:  # type: ignore[type-arg]
    array = {"kernel": np.full(3, value)}
    return [("own", "sgd", array, number), ("gradients", "sgd", array, number)]


def test_a_step_that_one_rank_did_not_take_is_named(tmp_path: Path) -> None:
    steps = [*step(1), *step(2)]
    records(tmp_path, "one", *steps)
    records(tmp_path, "rank0", *steps)
    records(tmp_path, "rank1", *step(1))
    found = compare(tmp_path)
    assert found.status == 1
    assert "Step 2: steps: rank 1 took no such step" in found.text
    assert "let all ranks decide alike" in found.text


def test_a_script_that_failed_is_compared_up_to_there(tmp_path: Path) -> None:
    steps = [*step(1), *step(2)]
    records(tmp_path, "one", *steps)
    records(tmp_path, "rank0", *step(1))
    records(tmp_path, "rank1", *step(1))
    found = compare(tmp_path, ["2 ranks"])
    assert found.status == 2
    assert "failed on 2 ranks" in found.text
    records(tmp_path, "rank1", *step(1, 2.0))
    assert compare(tmp_path, ["2 ranks"]).status == 1


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    records(tmp_path, "one", *step(1))
    records(tmp_path, "rank0", *step(1, 1 + 1e-6))
    records(tmp_path, "rank1", *step(1, 1 + 1e-6))
    assert compare(tmp_path).status == 0


@pytest.mark.parametrize(
    ("ranks", "nudged", "status", "words"),
    [
        (1.001, [1.001], 0, "Left out: differences of kernel up to 1e-03"),
        (1.001, [1.00001], 1, "gradient of kernel: 1.001 on rank 0"),
        (1.001, [1.0001] * 3, 1, "gradient of kernel: 1.001 on rank 0"),
        (1.001, [1.0001, 1.001], 0, "Left out: differences of kernel"),
        (1.09, [1.5], 0, "Left out"),
        (1.2, [1.5], 2, "not compared from there: Step 1: gradient of kernel"),
        (2.0, [1.01], 1, "gradient of kernel: 2 on rank 0"),
    ],
)
def test_a_difference_is_compared_with_what_rounding_does(
    ranks: float, nudged: list[float], status: int, words: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hvd_keras._verify.compare"]
    records(tmp_path, "one", *step(1))
    records(tmp_path, "rank0", *step(1, ranks))
    records(tmp_path, "rank1", *step(1, ranks))
    for number, value in enumerate(nudged):
        done = subprocess.run([*command, str(tmp_path)], capture_output=True)
        assert (done.returncode, done.stdout) == (NEEDS_NUDGED, b"")
        records(tmp_path, f"nudged{number}", *step(1, value))
    done = subprocess.run([*command, str(tmp_path)], capture_output=True)
    assert done.returncode == status
    assert words in done.stdout.decode()


@pytest.mark.parametrize(
    ("ranks", "status", "words"),
    [
        (step(1, 1.5), 2, "alike before the BatchNormalization norm"),
        ([], 1, "took no such step"),  # no matter of rounding
    ],
)
def test_rows_that_are_alike_before_a_normalization_show_nothing(
    ranks: list[tuple],  # type: ignore[type-arg]
    status: int,
    words: str,
    tmp_path: Path,
) -> None:
    records(tmp_path, "nudged", *step(1))
    for name in ("one", "rank0", "rank1"):
        writer = Writer(tmp_path / name)
        writer.add("note", "alike", layer="norm")
        for kind, key, arrays, number in step(1) if name == "one" else ranks:
            writer.add(kind, key, arrays, step=number)
    found = compare(tmp_path)
    assert (found.status, words in found.text) == (status, True), found.text


def test_steps_of_the_one_process_alone_were_not_compared(
    tmp_path: Path,
) -> None:
    end = ("weights", "end", {}, 0)
    records(tmp_path, "one", *step(1), *step(2), ("weights", "end", {}, 2))
    records(tmp_path, "rank0", end)
    records(tmp_path, "rank1", end)
    found = compare(tmp_path, ["2 ranks"])
    assert found.status == 2
    assert "Until then" not in found.text


def test_the_cause_names_the_model_that_trains(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("rank0", 1.5), ("rank1", 1.5)):
        writer = Writer(tmp_path / name)
        for model, own in (("Sequential", ""), ("Distiller", "Distiller")):
            methods = {"train_step": own, "compute_loss": ""}
            writer.add(
                "note", "model", model=model, own=methods, optimizer={},
                losses=["mse"],
            )  # fmt: skip
        rows = {"x": np.arange(4)}
        part = rows if name == "one" else {"x": np.arange(4)[int(name[4]) :: 2]}
        writer.add("rows", "batch", part, step=1, model="Sequential")
        writer.add("own", "sgd", {"w": np.float64([value, 2])}, step=1)
        writer.add("gradients", "sgd", {"w": np.float64([value, 2])}, step=1)
    found = compare(tmp_path)
    assert found.status == 1
    assert "the loss `mse`" in found.text
    assert "Distiller" not in found.text


def test_a_large_array_is_kept_as_sums_of_parts(tmp_path: Path) -> None:
    large = np.zeros(2 * MAX_ELEMENTS + 5, np.float32)
    large[7] = 1.0
    records(tmp_path, "one", ("weights", "trained", {"w": large}, 1))
    (event,) = read(tmp_path / "one")
    assert event.arrays["w"].size == MAX_ELEMENTS
    assert event.arrays["w"].sum() == 1.0


def test_random_numbers_of_a_rank_are_known_before_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('next one')")
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    path = os.pathsep.join([str(SITE), str(tmp_path)])

    def run(rank: str) -> str:
        settings = {"HVD_VERIFY": "x", "HVD_RANK": rank, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=clean_environ(**settings),
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run("0") == run("0") != run("1")
    assert run("0").startswith("next one")


def test_a_script_may_still_choose_its_precision(tmp_path: Path) -> None:
    code = """
        import hvd_keras, keras
        keras.config.set_floatx("float64")
        print(keras.layers.Dense(1).dtype_policy.name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean_environ(HVD_VERIFY=str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "float64"


@pytest.mark.thorough
def test_tensorflow_shuffles_by_the_seed_of_the_script(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    code = """
    import hvd_keras, keras, tensorflow as tf
    rows = tf.data.Dataset.range(50)
    for seed in (1, None):
        print([int(row) for row in rows.shuffle(50, seed=seed)])
    print(tf.random.uniform([]).numpy(), tf.random.uniform([], seed=1).numpy())
    """

    def run(rank: str) -> list[str]:
        settings = {"HVD_VERIFY": str(tmp_path), "HVD_RANK": rank}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=clean_environ(PYTHONPATH=str(ROOT), **settings),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n")

    first, again, other = run("0"), run("0"), run("1")
    assert first == again
    assert first[0] == other[0]  # its own seed
    assert first[1] != other[1]  # no seed
    (mine, seeded), (theirs, same) = first[2].split(), other[2].split()
    assert mine != theirs
    assert seeded == same


_WRITES = """
    import json, os
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    with open("seen.txt") as file:
        assert file.read() == "old"
    assert not os.path.exists("new")
    x = np.random.rand(3000, 4).astype("float32")
    model = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1),
    ])
    model.compile("adam", "mse")
    keeps = keras.callbacks.ModelCheckpoint(
        "new/{epoch}.weights.h5", save_weights_only=True
    )
    logs = keras.callbacks.CSVLogger("log.csv")
    model.fit(x, x.sum(1), epochs=4, verbose=0, callbacks=[keeps, logs])
    assert len(model.predict(x, verbose=0)) == 3000
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    model.export("exported", verbose=False)
    if os.environ["HVD_RANK"] == "0":
        with open("seen.txt", "r+") as file:
            file.write("new")
        os.replace("moved.txt", "model.txt")
        os.remove("removed.txt")
        with open("new/notes.json", "w") as file:
            json.dump([], file)
"""


def test_an_unchanged_script_is_equal_and_leaves_its_files(
    tmp_path: Path,
) -> None:
    """It is cut, and shuffles; both runs find the files of before."""
    names = "seen.txt moved.txt model.txt removed.txt log.csv model.keras "
    names += "model.weights.h5 exported/saved_model.pb"
    (tmp_path / "exported").mkdir()
    for name in names.split():
        (tmp_path / name).write_text("old")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_WRITES))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hvd_keras.run", "--verify", "-np", "2"),
            *("--distribute", "--", sys.executable, str(script)),
        ],
        env=clean_environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("Equal to one process: 20 steps")
    for name in names.split():
        assert (tmp_path / name).read_text() == "old", name
    assert not (tmp_path / "new").exists()
