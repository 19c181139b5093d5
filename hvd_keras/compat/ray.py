"""`horovod.ray` on `hvd_keras.ray`: executors with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hvd_keras._common.ignored import ignoring
from hvd_keras.compat.discovery import HostDiscovery
from hvd_keras.ray._ray import ray
from hvd_keras.ray.elastic_executor import ElasticRayExecutor as _Elastic
from hvd_keras.ray.executor import RayExecutor as _Executor

__all__ = ["ElasticRayExecutor", "RayExecutor", "RayHostDiscovery"]

# Ray reaches its nodes by itself.
_OF_SSH = "ssh_identity_file ssh_str nics"


class _Settings(dict[str, Any]):
    """Settings whose entries are attributes too, as Horovod's are."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RayExecutor(_Executor):
    """`hvd_keras.ray.RayExecutor`, with Horovod's arguments."""

    @ignoring(
        "horovod.ray.RayExecutor",
        "use_current_placement_group cooldown_range override_discovery",
    )
    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        *,
        num_slots: int | None = None,
        cpus_per_slot: float | None = None,
        gpus_per_slot: int | None = None,
        **elastic: Any,
    ) -> None:
        """Describes the ranks.

        Args:
            settings: See `hvd_keras.ray.RayExecutor`.
            num_workers: See there.
            num_hosts: See there.
            num_workers_per_host: See there.
            cpus_per_worker: See there.
            use_gpu: See there.
            gpus_per_worker: See there.
            num_slots: Old name of `num_workers_per_host`.
            cpus_per_slot: Old name of `cpus_per_worker`.
            gpus_per_slot: Old name of `gpus_per_worker`.
            **elastic: `min_workers`, `max_workers`, `reset_limit`,
                `elastic_timeout`.
        """
        super().__init__(
            settings,
            num_workers,
            num_hosts=num_hosts,
            num_workers_per_host=num_slots or num_workers_per_host,
            cpus_per_worker=cpus_per_slot or cpus_per_worker,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot or gpus_per_worker,
            **elastic,
        )

    run = ignoring("horovod.ray.RayExecutor.run", "callbacks")(_Executor.run)
    run_remote = ignoring("horovod.ray.RayExecutor.run_remote", "callbacks")(
        _Executor.run_remote
    )
    execute = ignoring("horovod.ray.RayExecutor.execute", "callbacks")(
        _Executor.execute
    )

    @staticmethod
    @ignoring("horovod.ray.RayExecutor.create_settings", f"{_OF_SSH} verbose")
    def create_settings(
        timeout_s: int = 300,
        *,
        placement_group_timeout_s: int | None = None,
        **others: Any,
    ) -> Any:
        """Returns settings for `settings`.

        Args:
            timeout_s: Seconds to wait for the resources of all ranks.
            placement_group_timeout_s: The same; it counts if it is given.
            **others: Kept as they are.
        """
        return _Settings(
            others, timeout_s=placement_group_timeout_s or timeout_s
        )


class ElasticRayExecutor(_Elastic):
    """`hvd_keras.ray.ElasticRayExecutor`, with Horovod's arguments."""

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        """Describes the ranks.

        Args:
            settings: See `hvd_keras.ray.ElasticRayExecutor`.
            use_gpu: See there.
            cpus_per_slot: See there.
            gpus_per_slot: See there.
            env_vars: See there.
            override_discovery: Whether to ask Ray which hosts there are, and
                not `settings.discovery`.
        """
        told = dict(settings or {})
        discovery = told.pop("discovery", None)
        super().__init__(
            told,
            use_gpu=use_gpu,
            cpus_per_slot=cpus_per_slot,
            gpus_per_slot=gpus_per_slot,
            env_vars=env_vars,
            discover=None
            if override_discovery or discovery is None
            else discovery.find_available_hosts_and_slots,
        )

    @ignoring("horovod.ray.ElasticRayExecutor.run", "callbacks")
    def run(  # type: ignore[override]
        self, worker_fn: Callable[[], Any], callbacks: Any = None
    ) -> list[Any]:
        """Calls a function on all ranks; returns what each returned."""
        return super().run(worker_fn)

    @staticmethod
    @ignoring("horovod.ray.ElasticRayExecutor.create_settings", _OF_SSH)
    def create_settings(*args: Any, **kwargs: Any) -> Any:
        """Returns settings as `hvd_keras.ray.ElasticRayExecutor` does."""
        return _Settings(_Elastic.create_settings(*args, **kwargs))


class RayHostDiscovery(HostDiscovery):
    """Says which nodes Ray has, and how many ranks they have room for."""

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int = 1,
    ) -> None:
        """Says what a rank needs.

        Args:
            use_gpu: Whether each needs a GPU.
            cpus_per_slot: Cores for each.
            gpus_per_slot: GPUs for each, with `use_gpu`.
        """
        self._need = {"CPU": cpus_per_slot}
        if use_gpu:
            self._need["GPU"] = gpus_per_slot

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        found = {}
        for node in ray.nodes():
            has = node["Resources"]
            slots = min(int(has.get(n, 0) // k) for n, k in self._need.items())
            if node["Alive"] and slots:
                found[str(node["NodeManagerAddress"])] = slots
        return found
