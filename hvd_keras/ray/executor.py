"""Ranks in Ray's actors, under the names of Horovod's `RayExecutor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras._common import horovod_site
from hvd_keras.exceptions import InvalidArgumentError, LaunchError
from hvd_keras.ray._ray import ray
from hvd_keras.ray.elastic_executor import ElasticRayExecutor
from hvd_keras.run.hosts import workers


class RayExecutor:
    """Runs functions on ranks that are actors of Ray.

    The actors live from `start()` to `shutdown()`; so do the modules and
    variables that functions leave in them. With `min_workers` the ranks may
    die, leave and come: they are those of an `ElasticRayExecutor`, and live
    for one call.
    """

    def __init__(
        self,
        settings: Any = None,
        num_workers: int | None = None,
        *,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
    ) -> None:
        """Describes the ranks; `start()` starts them.

        Args:
            settings: What `create_settings` returns; None: 300 s to start.
            num_workers: Number of ranks, anywhere in the cluster.
            num_hosts: Instead, number of hosts, each with
                `num_workers_per_host` ranks.
            num_workers_per_host: Ranks on each of those hosts.
            cpus_per_worker: Cores for each rank.
            use_gpu: Whether each rank needs a GPU.
            gpus_per_worker: How many. Defaults to 1 with `use_gpu`.
            min_workers: Makes the ranks elastic: training goes on while so
                many are left. `num_workers` counts for nothing then.
            max_workers: Most ranks of an elastic executor. Defaults to as many
                as the cluster has room for.
            reset_limit: See `ElasticRayExecutor.create_settings`.
            elastic_timeout: See `ElasticRayExecutor.create_settings`.

        Raises:
            InvalidArgumentError: Both or neither of `num_workers` and
                `num_hosts` are given, and no `min_workers`.
        """
        self._timeout_seconds = (settings or {}).get("timeout_s", 300)
        self._group: Any = None
        self._actors: list[Any] = []  # by rank
        self._elastic: ElasticRayExecutor | None = None
        self._executable: tuple[Any, ...] = ()
        if min_workers is not None or max_workers is not None:
            self._elastic = ElasticRayExecutor(
                ElasticRayExecutor.create_settings(
                    min_workers or 1,
                    max_workers,
                    reset_limit,
                    elastic_timeout,
                    self._timeout_seconds,
                ),
                use_gpu=use_gpu,
                cpus_per_slot=cpus_per_worker,
                gpus_per_slot=gpus_per_worker,
            )
            return
        if (num_workers is None) == (num_hosts is None):
            raise InvalidArgumentError(
                "One of `num_workers` and `num_hosts` must be given, or "
                "`min_workers`. Received: "
                f"num_workers={num_workers}, num_hosts={num_hosts}."
            )
        gpus = gpus_per_worker or 1 if use_gpu else 0
        self._need = {"CPU": cpus_per_worker} | ({"GPU": gpus} if gpus else {})
        per_bundle = num_workers_per_host if num_hosts else 1
        self._num_workers = num_workers or (num_hosts or 0) * per_bundle
        self._bundles = [
            {name: number * per_bundle for name, number in self._need.items()}
            for _ in range(self._num_workers // per_bundle)
        ]
        self._strategy = "STRICT_SPREAD" if num_hosts else "PACK"
        self._per_bundle = per_bundle

    @staticmethod
    def create_settings(timeout_s: int = 300, **_: Any) -> dict[str, int]:
        """Returns settings for `settings`; the others of Horovod are ignored.

        Args:
            timeout_s: Seconds to wait for the resources of all ranks.
        """
        return {"timeout_s": timeout_s}

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] = (),
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the ranks.

        Args:
            executable_cls: Each rank makes an object of it, for `execute`.
            executable_args: Arguments for that.
            executable_kwargs: The same by name.
            extra_env_vars: Environment variables for the ranks.

        Raises:
            LaunchError: The cluster has no room within the timeout.
        """
        executable = (
            executable_cls,
            tuple(executable_args or ()),
            dict(executable_kwargs or {}),
        )
        if self._elastic is not None:
            self._executable = executable
            self._elastic.start(extra_env_vars)
            return
        try:
            self._start_actors()
            is_horovod = horovod_site.is_used()
            places, steps = self._variables(), []
            for actor, own in zip(self._actors, places, strict=True):
                told = {**(extra_env_vars or {}), **own}
                steps.append(actor.become_rank.remote(told, is_horovod))
                steps.append(actor.make.remote(*executable))
            ray.get(steps)
        except BaseException:
            self.shutdown()
            raise

    def _start_actors(self) -> None:
        """Starts the actors of the ranks, in any order."""
        self._group = ray.util.placement_group(self._bundles, self._strategy)
        ready, _ = ray.wait(
            [self._group.ready()], timeout=self._timeout_seconds
        )
        if not ready:
            raise LaunchError(
                f"Ray must have room for {self._num_workers} ranks with "
                f"{self._need} each within {self._timeout_seconds} s. "
                f"Received: {ray.available_resources()}."
            )
        self._actors = [self._start_actor(n) for n in range(self._num_workers)]

    def _variables(self) -> list[dict[str, str]]:
        """Puts the actors in the order of their ranks; tells their places."""
        hosts = ray.get([actor.host.remote() for actor in self._actors])
        order = workers.by_host(hosts)
        self._actors = [self._actors[worker] for worker in order]
        at = ray.get(self._actors[0].meeting_point.remote(len(set(hosts))))
        return workers.variables([hosts[n] for n in order], at, "Ray")

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on all ranks; returns what they return.

        Raises:
            ray.exceptions.RayTaskError: It raised on a rank.
            ray.exceptions.RayActorError: A rank has died.
            RankError: It raised on an elastic rank, or too few are left.
        """
        if self._elastic is not None:
            return self._elastic.run(fn, args or (), kwargs)
        return list(ray.get(self.run_remote(fn, args, kwargs)))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Does what `run` does, and returns references without waiting.

        Raises:
            NotImplementedError: The ranks are elastic.
        """
        self._refuse_elastic("run_remote")
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        return [a.run.remote(fn, args, kwargs) for a in self._started()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls `fn` with the object of each rank; returns what they return."""
        if self._elastic is not None:
            return self._elastic.run(_execute, (fn, *self._executable))
        refs = [actor.execute.remote(fn) for actor in self._started()]
        return list(ray.get(refs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn` with the object of rank 0; returns what it returns.

        Raises:
            NotImplementedError: The ranks are elastic.
        """
        self._refuse_elastic("execute_single")
        return ray.get(self._started()[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Ends all ranks and frees what Ray has kept for them."""
        if self._elastic is not None:
            self._elastic.shutdown()
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None

    def _refuse_elastic(self, name: str) -> None:
        if self._elastic is not None:
            raise NotImplementedError(
                f"`{name}` needs ranks that stay: elastic ones live for one "
                "call of `run` or `execute`. Received: an executor with "
                "`min_workers` or `max_workers`."
            )

    def _started(self) -> list[Any]:
        if not self._actors:
            raise LaunchError("`start()` must be called before.")
        return self._actors

    def _start_actor(self, number: int) -> Any:
        strategy = ray.util.scheduling_strategies
        return (
            ray.remote(_Rank)
            .options(
                num_cpus=self._need["CPU"],
                num_gpus=self._need.get("GPU", 0),
                scheduling_strategy=strategy.PlacementGroupSchedulingStrategy(
                    placement_group=self._group,
                    placement_group_bundle_index=number // self._per_bundle,
                ),
            )
            .remote()
        )


class _Rank:
    """A rank. Ray unpickles what it is to run when its place is set."""

    def __init__(self) -> None:
        self._executable: Any = None

    def host(self) -> str:
        return str(ray.util.get_node_ip_address())

    def meeting_point(self, num_hosts: int) -> str:
        return workers.meeting_point(num_hosts)

    def become_rank(self, variables: dict[str, str], is_horovod: bool) -> None:
        workers.become_rank(variables, is_horovod=is_horovod)

    def make(
        self,
        executable_cls: type | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._executable = _made(executable_cls, args, kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return fn(*args, **kwargs)

    def execute(self, fn: Callable[[Any], Any]) -> Any:
        return fn(self._executable)


def _made(
    executable_cls: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return None if executable_cls is None else executable_cls(*args, **kwargs)


def _execute(fn: Callable[[Any], Any], *executable: Any) -> Any:
    return fn(_made(*executable))
