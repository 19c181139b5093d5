"""Elastic ranks on Ray, under the names of Horovod's `ElasticRayExecutor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError, LaunchError
from hvd_keras.ray._ray import ray
from hvd_keras.ray.shares import Shares
from hvd_keras.run.function import run_spec
from hvd_keras.run.hosts.provider import Provider
from hvd_keras.run.spec import (
    JobSpec,
    Output,
    Provision,
    Reach,
    elastic,
    settings,
)

# On each node it is the Python of Ray's workers there.
_PYTHON = "python3"


class ElasticRayExecutor:
    """Runs a function on ranks that may die, leave and come.

    An actor on each node holds the resources of the ranks there, and runs
    hvdrun's agent, which starts the ranks as processes of their own. If one
    dies, the others stay in their processes, and another one is started. Nodes
    that Ray adds get ranks; those that it loses are done without.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        discover: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Describes the ranks; `start()` asks Ray for them.

        Args:
            settings: What `create_settings` returns; None: its defaults.
            use_gpu: Whether each rank needs a GPU.
            cpus_per_slot: Cores for each rank.
            gpus_per_slot: GPUs for each rank. Defaults to 1 with `use_gpu`.
            env_vars: Environment variables for the ranks.
            discover: Returns the slots of each host, by its name or address,
                that may be used; it is called each second. Defaults to all
                nodes of Ray.

        Raises:
            InvalidArgumentError: A number makes no sense.
        """
        if gpus_per_slot and not use_gpu:
            raise InvalidArgumentError(
                "`gpus_per_slot` must be given with `use_gpu=True`. Received: "
                f"gpus_per_slot={gpus_per_slot}."
            )
        if cpus_per_slot <= 0:
            raise InvalidArgumentError(
                f"`cpus_per_slot` must be over 0. Received: {cpus_per_slot}."
            )
        self._settings = self.create_settings(**(settings or {}))
        gpus = gpus_per_slot or 1 if use_gpu else 0
        self._need = {"CPU": cpus_per_slot, "GPU": gpus}
        self._num_threads = max(1, int(cpus_per_slot))
        self._env_vars = dict(env_vars or {})
        self._discover = discover
        self._provider: Provider | None = None  # of a job that runs
        self._slots: Mapping[str, int] = {}
        self._shares: Shares | None = None

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 300,
        verbose: bool = False,
        **others: Any,
    ) -> dict[str, Any]:
        """Returns settings for `settings`; Horovod's others are ignored.

        Args:
            min_num_proc: Number of ranks without which training cannot go on.
                Horovod's older name `min_np` will do.
            max_num_proc: Most ranks; or `max_np`. Defaults to as many as the
                cluster has room for.
            reset_limit: How often failed ranks are started again; those of
                lost nodes do not count. Defaults to hvdrun's 3.
            elastic_timeout: Seconds to wait for `min_num_proc` ranks, once
                there were as many.
            timeout_s: Seconds to wait for them in `start()`.
            verbose: Whether to show each start and end.
            **others: `min_np` and `max_np`.

        Raises:
            InvalidArgumentError: `min_num_proc` is not in
                [1, `max_num_proc`].
        """
        low = others.get("min_np") or min_num_proc or 1
        high = others.get("max_np") or max_num_proc
        if low < 1 or (high is not None and high < low):
            raise InvalidArgumentError(
                "`min_num_proc` must be in [1, max_num_proc]. Received: "
                f"min_num_proc={low}, max_num_proc={high}."
            )
        return {
            "min_num_proc": low,
            "max_num_proc": high,
            "reset_limit": reset_limit,
            "elastic_timeout": elastic_timeout,
            "timeout_s": timeout_s,
            "verbose": verbose,
        }

    def start(self, extra_env_vars: Mapping[str, str] | None = None) -> None:
        """Takes free resources of the cluster, for as many ranks as may be.

        They are taken until `shutdown()`, or until this process has ended.

        Args:
            extra_env_vars: More environment variables for the ranks.

        Raises:
            LaunchError: The cluster has no room within the timeout.
        """
        if self._shares is not None:
            raise LaunchError("`start()` must be called once.")
        self._env_vars.update(extra_env_vars or {})
        if not ray.is_initialized():
            ray.init()
        settings = self._settings
        low, seconds = settings["min_num_proc"], settings["timeout_s"]
        self._shares = Shares(
            self._need,
            settings["max_num_proc"] or sys.maxsize,
            self._note,
            self._discover,
        )
        try:
            if not self._shares.wait(low, seconds):
                raise LaunchError(
                    f"Ray must have room for {low} ranks with {self._need} "
                    f"each within {seconds} s. Received: "
                    f"{ray.available_resources()}."
                )
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        worker_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls `worker_fn(*args, **kwargs)` on all ranks.

        It calls `hvd.init()` and trains as in an elastic job of hvdrun, such as
        by `hvd.elastic.fit`. What the ranks print appears here, with the rank
        before each line.

        Args:
            worker_fn: The function; it travels by cloudpickle.
            args: Its arguments.
            kwargs: Its arguments by name.

        Returns:
            What it returned on each rank that was there in the end, in rank
            order.

        Raises:
            RankError: It raised on a rank, or too few ranks are left. It has
                the rank, the traceback there, and the exception as its cause.
            LaunchError: `start()` was not called.
        """
        shares = self._shares
        if shares is None:
            raise LaunchError("`start()` must be called before.")
        provider = self._provider = Provider(
            lambda host, command, configuration, has_gone: shares.run(
                host,
                (command, configuration, self._env_vars, self._num_threads),
                has_gone,
            )
        )
        try:
            return run_spec(
                self._spec(),
                worker_fn,
                args,
                kwargs,
                executable=_PYTHON,
                env=self._env_vars,
                provider=provider,
            )
        finally:
            self._provider = None
            provider.close()

    def shutdown(self) -> None:
        """Gives back what `start()` has taken."""
        if self._shares is not None:
            self._shares.close()
            self._shares = None

    def _spec(self) -> JobSpec:
        told = self._settings
        interface = None
        if not {**os.environ, **self._env_vars}.get("HVD_INTERFACE"):
            interface = ray.util.get_node_ip_address()
        return JobSpec(
            (),
            reach=Reach(python=_PYTHON),
            elastic=elastic(
                told["min_num_proc"],
                max_ranks=told["max_num_proc"],
                max_restarts=told["reset_limit"],
                timeout=told["elastic_timeout"],
            ),
            output=Output(is_verbose=told["verbose"]),
            settings=settings(HVD_INTERFACE=interface),
            provision=Provision("Ray", self._slots),
        )

    def _note(self, slots: Mapping[str, int]) -> None:
        """Notes what a job may use from now on."""
        self._slots = slots
        provider = self._provider
        if provider is not None:
            provider.tell(slots)
