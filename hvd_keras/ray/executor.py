"""Ranks in Ray's actors, under the names of Horovod's `RayExecutor`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras.exceptions import InvalidArgumentError, LaunchError
from hvd_keras.ray._ray import ray
from hvd_keras.run.hosts import workers


class RayExecutor:
    """Runs functions on ranks that are actors of Ray.

    The actors live from `start()` to `shutdown()`; so do the modules and
    variables that functions leave in them.
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

        Raises:
            InvalidArgumentError: Both or neither of `num_workers` and
                `num_hosts` are given.
        """
        if (num_workers is None) == (num_hosts is None):
            raise InvalidArgumentError(
                "One of `num_workers` and `num_hosts` must be given. "
                f"Received: num_workers={num_workers}, num_hosts={num_hosts}."
            )
        self._timeout_seconds = (settings or {}).get("timeout_s", 300)
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
        self._group: Any = None
        self._actors: list[Any] = []  # by rank

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
        try:
            self._start_actors()
            places = self._variables()
            ray.get(
                [
                    actor.start.remote(
                        {**(extra_env_vars or {}), **own},
                        executable_cls,
                        tuple(executable_args or ()),
                        dict(executable_kwargs or {}),
                    )
                    for actor, own in zip(self._actors, places, strict=True)
                ]
            )
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
        """
        return list(ray.get(self.run_remote(fn, args, kwargs)))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Does what `run` does, and returns references without waiting."""
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        return [a.run.remote(fn, args, kwargs) for a in self._started()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls `fn` with the object of each rank; returns what they return."""
        refs = [actor.execute.remote(fn) for actor in self._started()]
        return list(ray.get(refs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn` with the object of rank 0; returns what it returns."""
        return ray.get(self._started()[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Ends all ranks and frees what Ray has kept for them."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None

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

    def start(
        self,
        variables: dict[str, str],
        executable_cls: type | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        os.environ.update(variables)
        workers.become_rank(variables)
        if executable_cls is not None:
            self._executable = executable_cls(*args, **kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return fn(*args, **kwargs)

    def execute(self, fn: Callable[[Any], Any]) -> Any:
        return fn(self._executable)
