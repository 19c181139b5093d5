"""Every setting of hvd_keras: name, type, unit, default and effect.

The fields of `Config` are the one table. A setting is an environment variable
`HVD_*`. If Horovod has the same setting, its `HOROVOD_*` name works too, but
`HVD_*` wins. `init()` reads the settings once. Before `init()`, functions such
as `nccl_built()` read them in the same way. An `HVD_*` name that is not in the
table is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hvd_keras.exceptions import ConfigError

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_NCCL_PREFIX = "HVD_NCCL_"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table: how the environment sets a field of `Config`."""

    name: str  # "HVD_FUSION_THRESHOLD"
    field: str  # "fusion_threshold_bytes"
    kind: str  # "int", "float", "bool", "text" or "choice"
    default: Any
    effect: str
    unit: str = ""
    alias: str = ""  # Horovod's name, or none
    minimum: float = 0
    choices: tuple[str, ...] = ()
    same_on_all_ranks: bool = False
    secret: bool = False  # never shown

    def parse(self, text: str, name: str) -> Any:
        """Returns what a text that is not blank means; `name` held it."""
        value: Any = text.strip()
        lowered = value.lower()
        if self.kind == "text":
            return value
        if self.kind == "choice" and lowered in self.choices:
            return lowered
        if self.kind == "bool" and lowered in (*_TRUE, *_FALSE):
            return lowered in _TRUE
        if self.kind in ("int", "float"):
            try:
                number = int(value) if self.kind == "int" else float(value)
            except ValueError:
                number = math.nan
            if math.isfinite(number) and number >= self.minimum:
                return number
        raise ConfigError(
            f"`{name}` must be {self._values()}. Received: {text!r}."
        )

    def read(self, environ: Mapping[str, str]) -> Any:
        """Returns the value in `environ`, or the default."""
        for name in (self.name, self.alias):
            # An empty variable is how shells and YAML files say "unset".
            if name and environ.get(name, "").strip():
                return self.parse(environ[name], name)
        return self.default

    def _values(self) -> str:
        """Says in words what the value must be, if it is no text."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "bool":
            return "0 or 1"
        number = "a whole number" if self.kind == "int" else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        return f"{number}{unit}, {self.minimum:g} or more"


def _setting(
    name: str, kind: str, default: Any, effect: str, **options: Any
) -> Any:
    row = {"name": name, "kind": kind, "effect": effect, **options}
    show = not options.get("secret", False)
    return dataclasses.field(default=default, metadata=row, repr=show)


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings in force. Each field's row describes it."""

    rank: int | None = _setting(
        "HVD_RANK", "int", None, "Index of this process in the job; hvdrun "
        "sets it.", alias="HOROVOD_RANK",
    )  # fmt: skip
    size: int | None = _setting(
        "HVD_SIZE", "int", None, "Number of processes in the job; hvdrun "
        "sets it.", alias="HOROVOD_SIZE", minimum=1,
    )  # fmt: skip
    local_rank: int | None = _setting(
        "HVD_LOCAL_RANK", "int", None, "Index of this process on its host; "
        "hvdrun sets it.", alias="HOROVOD_LOCAL_RANK",
    )  # fmt: skip
    local_size: int | None = _setting(
        "HVD_LOCAL_SIZE", "int", None, "Number of processes on this host; "
        "hvdrun sets it.", alias="HOROVOD_LOCAL_SIZE", minimum=1,
    )  # fmt: skip
    cross_rank: int | None = _setting(
        "HVD_CROSS_RANK", "int", None, "Index of this host; hvdrun sets it.",
        alias="HOROVOD_CROSS_RANK",
    )  # fmt: skip
    cross_size: int | None = _setting(
        "HVD_CROSS_SIZE", "int", None, "Number of hosts; hvdrun sets it.",
        alias="HOROVOD_CROSS_SIZE", minimum=1,
    )  # fmt: skip
    elastic: bool = _setting(
        "HVD_ELASTIC", "bool", False, "Whether ranks may die, leave and join; "
        "`hvdrun --min-np` sets it.",
    )  # fmt: skip
    member: int | None = _setting(
        "HVD_MEMBER", "int", None, "Number of this process among all that an "
        "elastic job has started; hvdrun sets it.",
    )  # fmt: skip
    keep_stopped: bool = _setting(
        "HVD_KEEP_STOPPED", "bool", False, "1: a rank of an elastic job that "
        "is stopped, by a debugger for example, is not killed.",
    )  # fmt: skip
    newcomer: bool = _setting(
        "HVD_NEWCOMER", "bool", False, "Whether this process began while its "
        "elastic job was running; then it joins when it begins to train. "
        "hvdrun sets it.",
    )  # fmt: skip
    rendezvous: str | None = _setting(
        "HVD_RENDEZVOUS", "text", None, "Where the ranks find each other, "
        "`unix:/path/of/a/socket`, `unix:@name` or `tcp:HOST:PORT`; hvdrun "
        "sets it.",
    )  # fmt: skip
    launcher: str | None = _setting(
        "HVD_LAUNCHER", "text", None, "Who has started this rank, if it was "
        "not hvdrun: then rank 0 serves at HVD_RENDEZVOUS.",
    )  # fmt: skip
    secret: str | None = _setting(
        "HVD_SECRET", "text", None, "64 hexadecimal digits that prove "
        "that a process belongs to the job; hvdrun makes them for each job.",
        secret=True,
    )  # fmt: skip
    secret_file: str | None = _setting(
        "HVD_SECRET_FILE", "text", None, "A file with the digits of "
        "HVD_SECRET, which only this user may read (mode 0600).",
    )  # fmt: skip
    interface: str | None = _setting(
        "HVD_INTERFACE", "text", None, "Name or address of the interface where "
        "this host listens to others; unset: the one that routes to them.",
    )  # fmt: skip
    hostname: str | None = _setting(
        "HVD_HOSTNAME", "text", None, "Name of this host in messages; unset: "
        "that of the system.",
    )  # fmt: skip
    tls_cert: str | None = _setting(
        "HVD_TLS_CERT", "text", None, "File (PEM) of the certificate that "
        "this host shows. With HVD_TLS_KEY and HVD_TLS_CA, the rendezvous of "
        "hosts uses TLS 1.3.",
    )  # fmt: skip
    tls_key: str | None = _setting(
        "HVD_TLS_KEY", "text", None, "File (PEM) of the certificate's key.",
    )  # fmt: skip
    tls_ca: str | None = _setting(
        "HVD_TLS_CA", "text", None, "File (PEM) of the authority that has "
        "signed the certificates of all hosts.",
    )  # fmt: skip
    mpi_library: str | None = _setting(
        "HVD_MPI_LIBRARY", "text", None, "MPI library of the standard ABI "
        "(libmpi_abi.so) that carries data between hosts; unset: that of the "
        "Python package `mpich`.",
    )  # fmt: skip
    heartbeat_seconds: float = _setting(
        "HVD_HEARTBEAT_SECONDS", "float", 2.0, "Hosts tell each other this "
        "often that they are there.", unit="seconds", minimum=0.1,
    )  # fmt: skip
    heartbeat_timeout_seconds: float = _setting(
        "HVD_HEARTBEAT_TIMEOUT", "float", 10.0, "A host that is silent for "
        "this long is lost.", unit="seconds", minimum=0.2,
    )  # fmt: skip
    start_timeout_seconds: float = _setting(
        "HVD_START_TIMEOUT", "float", 120.0, "Time that `init()` waits for "
        "the other ranks.", unit="seconds", alias="HOROVOD_START_TIMEOUT",
        minimum=0.001,
    )  # fmt: skip
    fusion_threshold_bytes: int = _setting(
        "HVD_FUSION_THRESHOLD", "int", 128 << 20, "Tensors that are ready "
        "together are reduced as one collective up to this size; 0: each by "
        "itself.", unit="bytes", alias="HOROVOD_FUSION_THRESHOLD",
        same_on_all_ranks=True,
    )  # fmt: skip
    bucket_bytes: int | None = _setting(
        "HVD_BUCKET_BYTES", "int", None, "Size of the groups in which "
        "`DistributedOptimizer` reduces gradients; unset: 8 MiB on one host, 2 "
        "MiB on several.", unit="bytes", minimum=1, same_on_all_ranks=True,
    )  # fmt: skip
    cycle_time_ms: float = _setting(
        "HVD_CYCLE_TIME", "float", 0.0, "Wait this long to gather tensors "
        "before each round; 0: start as soon as a tensor is ready.",
        unit="ms", alias="HOROVOD_CYCLE_TIME",
    )  # fmt: skip
    autotune: bool = _setting(
        "HVD_AUTOTUNE", "bool", False, "1: look for the fusion threshold and "
        "the cycle time with which steps are quickest, unless they are set; "
        "`hvdrun --autotune` sets it.", alias="HOROVOD_AUTOTUNE",
        same_on_all_ranks=True,
    )  # fmt: skip
    autotune_log: str | None = _setting(
        "HVD_AUTOTUNE_LOG", "text", None, "File (CSV) for what it tries, "
        "written by rank 0.", alias="HOROVOD_AUTOTUNE_LOG",
    )  # fmt: skip
    autotune_warmup_samples: int = _setting(
        "HVD_AUTOTUNE_WARMUP_SAMPLES", "int", 3, "Samples that it leaves out "
        "at the beginning.", alias="HOROVOD_AUTOTUNE_WARMUP_SAMPLES", minimum=1,
    )  # fmt: skip
    autotune_steps_per_sample: int = _setting(
        "HVD_AUTOTUNE_STEPS_PER_SAMPLE", "int", 5, "Steps of a sample.",
        alias="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", minimum=1,
    )  # fmt: skip
    autotune_max_samples: int = _setting(
        "HVD_AUTOTUNE_MAX_SAMPLES", "int", 20, "The most settings that it "
        "tries in its first round.",
        alias="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", minimum=2,
    )  # fmt: skip
    autotune_cache: str | None = _setting(
        "HVD_AUTOTUNE_CACHE", "text", None, "Folder where rank 0 keeps what it "
        "has found for the next run of the same model on as many ranks and "
        "hosts; `none`: nowhere; unset: hvd_keras/autotune in the user's "
        "folder for caches.",
    )  # fmt: skip
    autotune_start: str | None = _setting(
        "HVD_AUTOTUNE_START", "text", None, "Where the search begins, for "
        "trials of it: bytes of the fusion threshold, a comma, ms of the cycle "
        "time; unset: the values in force.", same_on_all_ranks=True,
    )  # fmt: skip
    cache_capacity: int = _setting(
        "HVD_CACHE_CAPACITY", "int", 1024, "Number of known requests that "
        "ranks agree on by one bit each; 0: none.",
        alias="HOROVOD_CACHE_CAPACITY", same_on_all_ranks=True,
    )  # fmt: skip
    stall_check_disable: bool = _setting(
        "HVD_STALL_CHECK_DISABLE", "bool", False, "1: neither warn about a "
        "rank that does not come, nor fail.",
        alias="HOROVOD_STALL_CHECK_DISABLE",
    )  # fmt: skip
    stall_warning_seconds: float = _setting(
        "HVD_STALL_CHECK_TIME_SECONDS", "float", 10.0, "Warn about a "
        "collective that some ranks have not called after this time; 0: never.",
        unit="seconds", alias="HOROVOD_STALL_CHECK_TIME_SECONDS",
    )  # fmt: skip
    stall_timeout_seconds: float = _setting(
        "HVD_STALL_SHUTDOWN_TIME_SECONDS", "float", 60.0, "Raise "
        "`StalledError` from a collective that some ranks have not called "
        "after this time; 0: never.", unit="seconds",
        alias="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    )  # fmt: skip
    strict: bool = _setting(
        "HVD_STRICT", "bool", False, "1: each warning of hvd_keras is an error "
        "(`StrictError`), for tests and CI; `hvdrun --strict` sets it.",
    )  # fmt: skip
    distribute: str = _setting(
        "HVD_DISTRIBUTE", "choice", "none", "Whether ranks run a `script` "
        "that knows nothing of them, or one that asks `keras.distribution`; "
        "`hvdrun --distribute` and `--keras-distribution` set it.",
        choices=("none", "script", "keras"),
    )  # fmt: skip
    distribute_batch: str = _setting(
        "HVD_DISTRIBUTE_BATCH", "choice", "auto", "What the batch size of "
        "arrays is under `keras.distribution`: that of `each` rank, or of "
        "`all` together. auto: as Keras says, each on JAX and torch from Keras "
        "3.16 on, else all.", choices=("auto", "each", "all"),
    )  # fmt: skip
    distribute_seed: int = _setting(
        "HVD_DISTRIBUTE_SEED", "int", 0, "Where the generators of random "
        "numbers begin under `hvdrun --distribute`, which draws it.",
    )  # fmt: skip
    verify: str | None = _setting(
        "HVD_VERIFY", "text", None, "Folder where this process records its "
        "steps; `hvdrun --verify` sets it.",
    )  # fmt: skip
    verify_steps: int = _setting(
        "HVD_VERIFY_STEPS", "int", 20, "How many steps; `hvdrun --verify` sets "
        "it.", minimum=1,
    )  # fmt: skip
    verify_ranks: int | None = _setting(
        "HVD_VERIFY_RANKS", "int", None, "The ranks that this one process "
        "stands for, in `hvdrun --verify`, which sets it.", minimum=1,
    )  # fmt: skip
    verify_nudge: int = _setting(
        "HVD_VERIFY_NUDGE", "int", 0, "Which measurement of what rounding does "
        "this process is, from 1; 0: none. `hvdrun --verify` sets it.",
    )  # fmt: skip
    metrics_port: int | None = _setting(
        "HVD_METRICS_PORT", "int", None, "Rank 0 of each host serves its "
        "counters to Prometheus here, on loopback; the others use the ports "
        "after it. Needs the extra `metrics`.", minimum=1,
    )  # fmt: skip
    tell_status: bool = _setting(
        "HVD_TELL_STATUS", "bool", False, "1: tell `hvdrun --status` how the "
        "rank is doing; hvdrun sets it.",
    )  # fmt: skip
    flight_record_dir: str | None = _setting(
        "HVD_FLIGHT_RECORD_DIR", "text", None, "Folder where each rank writes "
        "its last collectives after a failure and on SIGUSR2; hvdrun makes one "
        "for each job.",
    )  # fmt: skip
    timeline: str | None = _setting(
        "HVD_TIMELINE", "text", None, "Folder where each rank writes a "
        "timeline; DYNAMIC: only after `start_timeline()`.",
        alias="HOROVOD_TIMELINE",
    )  # fmt: skip
    timeline_mark_cycles: bool = _setting(
        "HVD_TIMELINE_MARK_CYCLES", "bool", False, "1: mark when a rank hears "
        "what to run next.", alias="HOROVOD_TIMELINE_MARK_CYCLES",
    )  # fmt: skip
    dynamic_process_sets: bool = _setting(
        "HVD_DYNAMIC_PROCESS_SETS", "bool", False, "1: process sets may be "
        'added and removed after `init()`, as with `process_sets="dynamic"`.',
        alias="HOROVOD_DYNAMIC_PROCESS_SETS", same_on_all_ranks=True,
    )  # fmt: skip
    preemption_file: str | None = _setting(
        "HVD_PREEMPTION_FILE", "text", None, "When this file appears on a "
        "host, `BackupAndRestore` saves and ends all ranks.",
    )  # fmt: skip
    preemption_command: str | None = _setting(
        "HVD_PREEMPTION_COMMAND", "text", None, "When this command of the "
        "shell ends with status 0 on a host, `BackupAndRestore` saves and ends "
        "all ranks.",
    )  # fmt: skip
    preemption_poll_seconds: float = _setting(
        "HVD_PREEMPTION_POLL_SECONDS", "float", 5.0, "How often to look for "
        "that file, or to run that command.", unit="seconds", minimum=0.01,
    )  # fmt: skip
    straggler_factor: float = _setting(
        "HVD_STRAGGLER_FACTOR", "float", 1.5, "In elastic jobs: tell of a rank "
        "that others wait for so that steps take longer by this "
        "factor; 0: never.", minimum=0.0,
    )  # fmt: skip
    straggler_seconds: float = _setting(
        "HVD_STRAGGLER_SECONDS", "float", 30.0, "The time that this looks at.",
        unit="seconds", minimum=0.1,
    )  # fmt: skip
    requeue_exit_code: int = _setting(
        "HVD_REQUEUE_EXIT_CODE", "int", 75, "Exit status of ranks that have "
        "been told to stop and have saved; 75 is EX_TEMPFAIL.", minimum=1,
    )  # fmt: skip
    gpu: str = _setting(
        "HVD_GPU", "choice", "auto", "on: `init()` connects the GPUs of the "
        "ranks, and fails if it cannot; early: it tries; late: the first "
        "collective on a GPU connects them; auto: early where each rank has a "
        "GPU of its own and a TensorFlow for GPUs, else late.",
        choices=("auto", "early", "late", "on"), same_on_all_ranks=True,
    )  # fmt: skip
    gpus_per_rank: int = _setting(
        "HVD_GPUS_PER_RANK", "int", 1, "GPUs that each rank sees, of those "
        "that the host's ranks see together; 0: all. With "
        "`--horovod-compat` 0 is the default.", same_on_all_ranks=True,
    )  # fmt: skip
    gpu_share: bool = _setting(
        "HVD_GPU_SHARE", "bool", False, "1: ranks may use one GPU, if NCCL "
        "can: 2.30 or later.", same_on_all_ranks=True,
    )  # fmt: skip
    gpu_fusion_buffer_bytes: int = _setting(
        "HVD_GPU_FUSION_BUFFER", "int", 64 << 20, "Memory on each GPU, in two "
        "halves, where small tensors are reduced as one.", unit="bytes",
        minimum=2, same_on_all_ranks=True,
    )  # fmt: skip
    gpu_direct_bytes: int = _setting(
        "HVD_GPU_DIRECT", "int", 4 << 20, "Tensors on GPUs that have this size "
        "or more are reduced in their own memory, not in that buffer.",
        unit="bytes", same_on_all_ranks=True,
    )  # fmt: skip
    gpu_packing: str = _setting(
        "HVD_GPU_PACKING", "choice", "auto", "How an allreduce of many small "
        "tensors on GPUs goes. batch: through that buffer, copied by one call "
        "of CUDA; copies: by a call for each; none: each in its own memory; "
        "auto: the quickest, measured at the first collective.",
        choices=("auto", "batch", "copies", "none"), same_on_all_ranks=True,
    )  # fmt: skip
    gpu_async_completion: bool | None = _setting(
        "HVD_GPU_ASYNC_COMPLETION", "bool", None, "1: an op on a GPU ends as "
        "soon as its work is queued, and its stream waits. If a rank is lost, "
        "results until the next collective are garbage. 0: it ends with its "
        "work; unset: 1 for gradients in a function, else 0.",
        alias="HOROVOD_ENABLE_ASYNC_COMPLETION",
    )  # fmt: skip
    cuda_runtime_library: str | None = _setting(
        "HVD_CUDART_LIBRARY", "text", None, "Path of the CUDA runtime; unset: "
        "search for it.",
    )  # fmt: skip
    nvml_library: str | None = _setting(
        "HVD_NVML_LIBRARY", "text", None, "Path of NVML, which counts the "
        "host's GPUs; unset: libnvidia-ml.so.1.",
    )  # fmt: skip
    nccl_library: str | None = _setting(
        "HVD_NCCL_LIBRARY", "text", None, "Path of NCCL; unset: search for it.",
    )  # fmt: skip
    log_level: str = _setting(
        "HVD_LOG_LEVEL", "choice", "info", "The least severe messages to log.",
        alias="HOROVOD_LOG_LEVEL", choices=LOG_LEVELS,
    )  # fmt: skip

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Reads all settings.

        Args:
            environ: Environment variables, usually `os.environ`.

        Returns:
            The settings in `environ`, and defaults for the others.

        Raises:
            ConfigError: An `HVD_*` name is unknown, or a value is bad.
        """
        known = {row.name for row in settings()}
        aliases = {row.alias for row in settings() if row.alias}
        for name in sorted(environ):
            if name.startswith(_NCCL_PREFIX):
                continue  # NCCL's own: see nccl_variables()
            if name.startswith("HVD_") and name not in known:
                raise ConfigError(_unknown_name(name, known))
            if name.startswith("HOROVOD_") and name not in aliases:
                # Horovod has more than we read.
                whole = _UNIT.sub("", name)
                near = difflib.get_close_matches(whole, aliases, 1, _TYPO)
                if near:
                    unit = next(
                        r.unit for r in settings() if r.alias == near[0]
                    )
                    raise ConfigError(
                        f"`{name}` is no setting of Horovod or hvd_keras. Did "
                        f"you mean `{near[0]}`{f', in {unit}' if unit else ''}?"
                    )
        return cls(**{row.field: row.read(environ) for row in settings()})

    def shared_values(self) -> dict[str, Any]:
        """The settings that must be equal on all ranks, by name."""
        return {
            row.name: getattr(self, row.field)
            for row in settings()
            if row.same_on_all_ranks
        }


_UNIT = re.compile("_(BYTES|KB|MB|GB|MS|SECONDS)$")
_TYPO = 0.95  # how near a name is that nobody else has meant


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean `...`?", or nothing if no name is near.

    A part of some names stands for each of them, such as for a setting and the
    one that switches it off.
    """
    known = sorted(known)
    whole = [other for other in known if other.startswith(f"{name}_")]
    nearest = whole or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    texts = [f"`{one}`" for one in nearest[:3]]
    return f" Did you mean {' or '.join(texts)}?" if texts else ""


def _unknown_name(name: str, known: set[str]) -> str:
    return (
        f"`{name}` is not a setting of hvd_keras: names that begin with HVD_ "
        "must be in the table that `hvdrun --help-env` prints."
        f"{did_you_mean(name, known)}"
    )


@functools.cache
def settings() -> tuple[Setting, ...]:
    """The table of settings, in the order of `Config`."""
    return tuple(
        Setting(field=field.name, default=field.default, **field.metadata)
        for field in dataclasses.fields(Config)
    )


def read_setting(environ: Mapping[str, str], name: str) -> Any:
    """Reads one setting as `Config.from_environ` does, and no other.

    Args:
        environ: Environment variables, usually `os.environ`.
        name: Such as "HVD_ELASTIC".

    Raises:
        ConfigError: The value is bad.
    """
    (row,) = (row for row in settings() if row.name == name)
    return row.read(environ)


def is_given(environ: Mapping[str, str], field: str) -> bool:
    """Whether the environment sets a field of `Config`, by either name."""
    (row,) = (row for row in settings() if row.field == field)
    names = (row.name, row.alias)
    return any(environ.get(name, "").strip() for name in names if name)


def nccl_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """NCCL's own settings: `HVD_NCCL_ALGO=Ring` means `NCCL_ALGO=Ring`.

    Args:
        environ: Environment variables, usually `os.environ`.

    Returns:
        The variables to add to the environment before NCCL is opened. They
        leave out those that `environ` has under NCCL's own name.
    """
    known = {row.name for row in settings()}
    return {
        name.removeprefix("HVD_"): value
        for name, value in environ.items()
        if name.startswith(_NCCL_PREFIX)
        and name not in known
        and name.removeprefix("HVD_") not in environ
    }


def render_table() -> str:
    """The table of settings in Markdown, for docs/settings.md."""
    lines = [
        "| Name | Type | Default | Effect |",
        "|---|---|---|---|",
    ]
    for row in settings():
        names = f"`{row.name}`"
        kind = f"{row.kind}, {row.unit}" if row.unit else row.kind
        default = "unset" if row.default is None else f"{text_of(row.default)}"
        also = f" Also `{row.alias}`." if row.alias else ""
        choices = f" One of {', '.join(row.choices)}." if row.choices else ""
        lines.append(
            f"| {names} | {kind} | {default} | {row.effect}{choices}{also} |"
        )
    return "\n".join(lines)


def text_of(value: Any) -> str:
    """Returns a value as one would write it in the environment."""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
