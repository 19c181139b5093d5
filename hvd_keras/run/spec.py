"""What a job is: what hvdrun's command line, `hvd.run` and Ray ask for."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_keras.exceptions import LaunchError

SPEC = "spec.json"  # the file of a spec for another process
GRACE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Elastic:
    """How a job goes on when ranks die, leave and come."""

    min_ranks: int
    max_ranks: int | None = None  # None: as many as it begins with
    max_restarts: int = 3
    restart_delay: float = 1.0  # seconds
    timeout: float = 600.0  # seconds to wait for `min_ranks`
    host_discovery_script: str | None = None
    slots_per_host: int = 1  # of hosts that it prints without a number
    # Seconds, at least and at most, without new ranks on a host that fails.
    blacklist_cooldown: Sequence[float] | None = None
    straggler_factor: float | None = None  # None: slow ranks may stay


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Where hosts meet that run hvdrun each."""

    num_hosts: str | None = None  # N or MIN:MAX; None: 1
    host: int | None = None  # the index of this one
    endpoint: str | None = None  # HOST:PORT of the first
    address: str | None = None  # the same in two
    port: int | None = None


@dataclasses.dataclass(frozen=True)
class Reach:
    """How to start agents on other hosts."""

    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    python: str | None = None  # None: the path of this one


@dataclasses.dataclass(frozen=True)
class Provision:
    """What another system gives a job, such as Ray: see `hosts/provider.py`."""

    name: str  # of the system
    hosts: Mapping[str, int]  # names and slots, to begin with
    descriptor: int | None = None  # a socket to the provider


@dataclasses.dataclass(frozen=True)
class Output:
    """What the user sees of a job, and what is kept of it."""

    folder: str | None = None  # for what each rank prints
    has_tags: bool = True
    has_times: bool = False
    shown_ranks: Sequence[int] = ()  # none: all
    is_verbose: bool = False
    status_seconds: float | None = None  # None: no table of the ranks
    timeline: str | None = None  # a folder
    report: str | None = None  # a file


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """A job to run."""

    command: Sequence[str]
    num_ranks: int | None = None  # None: the slots of the hosts
    hosts: str | None = None  # HOST:N,...
    hostfile: str | None = None
    meeting: Meeting = Meeting()
    reach: Reach = Reach()
    elastic: Elastic | None = None  # None: all ranks end when one fails
    output: Output = Output()
    grace: float = GRACE_SECONDS  # seconds for the ranks to end by themselves
    is_horovod: bool = False  # `import horovod` imports hvd_keras
    exports: Sequence[str] = ()  # NAME or NAME=VALUE, for other hosts too
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    provision: Provision | None = None  # None: hvdrun starts the agents
    # Of a job that runs a function:
    program: int | None = None  # a descriptor: what each rank gets as input
    results_folder: str | None = None

    def given_variables(self) -> dict[str, str]:
        """The variables that `exports` set."""
        pairs = (one.partition("=") for one in self.exports)
        return {name: value for name, equals, value in pairs if equals}

    def exported(self) -> tuple[str, ...]:
        """The names in `exports`."""
        return tuple(one.partition("=")[0] for one in self.exports)

    def to_json(self) -> str:
        """Returns this as text, for another process."""
        return json.dumps(dataclasses.asdict(self), default=_plain)


def _plain(value: Any) -> Any:
    """Returns a number of NumPy, or a path, as JSON knows it."""
    for kind in (operator.index, float):
        try:
            return kind(value)
        except (TypeError, ValueError):
            pass
    return str(value)


def of_json(text: str) -> JobSpec:
    """Returns the spec that `to_json` has written."""
    parts: dict[str, Any] = json.loads(text)
    for name, kind in (
        ("meeting", Meeting),
        ("reach", Reach),
        ("elastic", Elastic),
        ("output", Output),
        ("provision", Provision),
    ):
        if parts[name] is not None:
            parts[name] = kind(**parts[name])
    return JobSpec(**parts)


def elastic(min_ranks: int | None, **options: Any) -> Elastic | None:
    """Returns what makes a job elastic; None: it is not.

    Args:
        min_ranks: See `Elastic`; None: the job is not elastic.
        **options: The others; None: the default.

    Raises:
        LaunchError: Some of them make no sense without `min_ranks`.
    """
    given = {n: value for n, value in options.items() if value is not None}
    if min_ranks is not None:
        return Elastic(min_ranks, **given)
    if "host_discovery_script" in given:
        raise LaunchError(
            "`--host-discovery-script` must be given with --min-np, and "
            "without a list of hosts."
        )
    if given.keys() & {"max_ranks", "blacklist_cooldown", "straggler_factor"}:
        raise LaunchError(
            "`--max-np`, `--blacklist-cooldown` and `--evict-stragglers` "
            "must be given with --min-np, which makes a job elastic. "
            "Received: none."
        )
    return None


def settings(**values: Any) -> dict[str, str]:
    """Returns settings (environment variables) as text, without None."""
    return {n: str(v) for n, v in values.items() if v is not None}
