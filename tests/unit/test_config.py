from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from hvd_keras import config
from hvd_keras._job import membership
from hvd_keras._rendezvous import topology
from hvd_keras.config import Config
from hvd_keras.exceptions import ConfigError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.from_environ({}) == Config()
    assert Config().fusion_threshold_bytes == 134217728
    assert Config().cycle_time_ms == 0
    assert Config().cache_capacity == 1024
    assert Config().stall_warning_seconds == 10
    assert Config().stall_timeout_seconds == 60
    assert Config().start_timeout_seconds == 120
    assert Config().bucket_bytes is None


def test_every_setting_can_be_set_by_its_name_and_by_horovods() -> None:
    texts = {"int": "7", "float": "2.5", "bool": "1", "text": "unix:/x"}
    values = {"int": 7, "float": 2.5, "bool": True, "text": "unix:/x"}
    for row in config.settings():
        last = row.choices[-1] if row.choices else ""
        text = texts.get(row.kind, last)
        expected = values.get(row.kind, last)
        for name in (row.name, row.alias):
            if name:
                read = Config.from_environ({name: text})
                assert getattr(read, row.field) == expected, name
                changed = dataclasses.replace(Config(), **{row.field: expected})
                assert read == changed, name


SOURCES = {
    path: path.read_text()
    for path in Path(config.__file__).parent.rglob("*.py")
    if path != Path(config.__file__)
}


def test_every_setting_has_a_reader() -> None:
    text = "\n".join(SOURCES.values())
    for row in config.settings():
        reader = rf"\.{row.field}\b|read_setting\([^)]*\"{row.name}\""
        assert re.search(reader, text), row.name


def test_switches_are_read_in_one_way() -> None:
    switches = {row.name for row in config.settings() if row.kind == "bool"}
    for path, source in SOURCES.items():
        # Not those that are set.
        read = r"environ(?:\.get\(|\[)\"(HVD_\w+)\"(?!\] = )"
        found = re.findall(read, source)
        assert not switches & set(found), path


@pytest.mark.parametrize("text", ["1", "true", "Yes", " on ", "0", "no", ""])
def test_switches_of_elastic_jobs_mean_what_the_table_says(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HVD_ELASTIC": text, "HVD_MEMBER": "3"}
    is_elastic = Config.from_environ(environ).elastic
    assert (topology.detect(environ).member == 3) == is_elastic
    monkeypatch.setenv("HVD_ELASTIC", text)
    assert membership.is_elastic() == is_elastic


def test_hvd_name_wins_over_horovod_name() -> None:
    environ = {"HOROVOD_CYCLE_TIME": "3", "HVD_CYCLE_TIME": "4"}
    assert Config.from_environ(environ).cycle_time_ms == 4


def test_an_empty_value_counts_as_unset() -> None:
    environ = {"HVD_CYCLE_TIME": " ", "HOROVOD_CYCLE_TIME": "5"}
    assert Config.from_environ(environ).cycle_time_ms == 5


def test_part_of_several_names_stands_for_each() -> None:
    with pytest.raises(
        ConfigError,
        match="`HVD_STALL_CHECK_DISABLE` or `HVD_STALL_CHECK_TIME_SECONDS`",
    ):
        Config.from_environ({"HVD_STALL_CHECK": "1"})


def test_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        Config.from_environ({"HVD_FUSION_TRESHOLD": "1"})
    assert "HVD_FUSION_TRESHOLD" in str(raised.value)
    assert "`HVD_FUSION_THRESHOLD`?" in str(raised.value)
    with pytest.raises(ConfigError, match=r"--help-env` prints.$"):
        Config.from_environ({"HVD_NCCL_ALGO": "Ring", "HVD_QQQQQQQQ": "1"})


def test_a_horovod_name_that_is_none_of_ours_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="mean `HOROVOD_FUSION_THRESHOLD`"):
        Config.from_environ({"HOROVOD_FUSION_TRESHOLD": "1"})
    with pytest.raises(ConfigError, match="mean `HOROVOD_CYCLE_TIME`, in ms"):
        Config.from_environ({"HOROVOD_CYCLE_TIME_MS": "1"})
    for name in "HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_CPU_OPERATIONS":
        Config.from_environ({name: "1"})
    assert Config.from_environ({"HOROVOD_TORUS_ALLREDUCE": "1"}) == Config()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("HVD_FUSION_THRESHOLD", "64MB", "a whole number of bytes, 0 or more"),
        ("HVD_FUSION_THRESHOLD", "-1", "a whole number of bytes, 0 or more"),
        ("HVD_FUSION_THRESHOLD", "1.5", "a whole number of bytes, 0 or more"),
        ("HVD_BUCKET_BYTES", "0", "a whole number of bytes, 1 or more"),
        ("HVD_SIZE", "0", "a whole number, 1 or more"),
        ("HVD_CYCLE_TIME", "nan", "a number of ms, 0 or more"),
        ("HVD_CYCLE_TIME", "inf", "a number of ms, 0 or more"),
        ("HVD_START_TIMEOUT", "0", "a number of seconds, 0.001 or more"),
        ("HVD_STALL_CHECK_DISABLE", "maybe", "0 or 1"),
        ("HVD_LOG_LEVEL", "loud", f"one of {', '.join(config.LOG_LEVELS)}"),
        ("HOROVOD_CYCLE_TIME", "soon", "a number of ms, 0 or more"),
    ],
)
def test_bad_value_is_an_error_that_says_what_it_must_be(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Config.from_environ({name: text})
    assert str(raised.value) == (
        f"`{name}` must be {expected}. Received: {text!r}."
    )


def test_the_least_value_is_allowed() -> None:
    for row in config.settings():
        if row.kind in ("int", "float"):
            read = Config.from_environ({row.name: f"{row.minimum:g}"})
            assert getattr(read, row.field) == row.minimum, row.name


def test_the_secret_is_never_shown() -> None:
    read = Config.from_environ({"HVD_SECRET": "c0ffee"})
    assert read.secret == "c0ffee"
    assert "c0ffee" not in repr(read)
    assert "c0ffee" not in str(read.shared_values())


def test_table_has_a_line_for_each_field() -> None:
    lines = config.render_table().splitlines()[2:]
    fields = dataclasses.fields(Config)
    assert len(lines) == len(fields)
    for line, field in zip(lines, fields, strict=True):
        assert line.startswith(f"| `{field.metadata['name']}` |")
        assert line.count(" | ") == 3
    assert "| 134217728 |" in config.render_table()


def test_only_what_must_match_is_shared() -> None:
    assert set(Config().shared_values()) == {
        "HVD_AUTOTUNE",
        "HVD_AUTOTUNE_START",
        "HVD_BUCKET_BYTES",
        "HVD_CACHE_CAPACITY",
        "HVD_DYNAMIC_PROCESS_SETS",
        "HVD_FUSION_THRESHOLD",
        "HVD_GPU",
        "HVD_GPU_DIRECT",
        "HVD_GPU_FUSION_BUFFER",
        "HVD_GPU_PACKING",
        "HVD_GPU_SHARE",
        "HVD_GPUS_PER_RANK",
    }


def test_settings_of_nccl_are_passed_on() -> None:
    environ = {
        "HVD_NCCL_ALGO": "Ring",
        "HVD_NCCL_PROTO": "LL",
        "NCCL_PROTO": "Simple",
        "HVD_NCCL_LIBRARY": "/x",
        "HVD_RANK": "1",
    }
    assert Config.from_environ(environ).nccl_library == "/x"
    assert config.nccl_variables(environ) == {"NCCL_ALGO": "Ring"}


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs/settings.md"
    table = config.render_table()
    assert page.read_text().endswith(f"\n\n{table}\n"), "make settings-table"
