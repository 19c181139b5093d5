"""The names that Horovod 0.28 documents, by module."""

from __future__ import annotations

_PLACES = (
    "init shutdown is_initialized start_timeline stop_timeline size local_size "
    "cross_size rank local_rank cross_rank is_homogeneous "
    "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built "
    "nccl_built ddl_built ccl_built cuda_built rocm_built "
)
_SETS = "ProcessSet global_process_set add_process_set remove_process_set "
_OPS = "Average Sum Adasum Min Max Product "
_OF_KERAS = (
    f"{_PLACES} {_SETS} Average Sum Compression DistributedOptimizer "
    "broadcast_global_variables allreduce allgather broadcast reducescatter "
    "load_model callbacks elastic "
)
_CALLBACKS = (
    "BroadcastGlobalVariablesCallback MetricAverageCallback "
    "LearningRateScheduleCallback LearningRateWarmupCallback "
    "BestModelCheckpoint CommitStateCallback UpdateBatchStateCallback "
    "UpdateEpochStateCallback"
)
_ESTIMATOR_AND_MODEL = "{0}Estimator {0}Model"

NAMES = {
    "horovod": "run",
    "horovod.tensorflow": f"{_PLACES} {_SETS} {_OPS} gpu_available rank_op "
    "size_op local_rank_op local_size_op process_set_included_op "
    "check_num_rank_power_of_2 num_rank_is_power_2 allreduce "
    "grouped_allreduce allgather grouped_allgather broadcast broadcast_ "
    "alltoall reducescatter grouped_reducescatter join broadcast_variables "
    "broadcast_object broadcast_object_fn allgather_object "
    "broadcast_global_variables BroadcastGlobalVariablesHook Compression "
    "DistributedOptimizer DistributedGradientTape "
    "PartialDistributedGradientTape SyncBatchNormalization elastic",
    "horovod.tensorflow.elastic": "run TensorFlowState TensorFlowKerasState",
    "horovod.tensorflow.mpi_ops": "allreduce allgather broadcast size rank",
    "horovod.tensorflow.functions": "broadcast_variables broadcast_object "
    "allgather_object",
    "horovod.tensorflow.compression": "Compression",
    "horovod.tensorflow.data.compute_service": "TfDataServiceConfig "
    "tf_data_service send_to_data_service compute_worker_fn",
    "horovod.tensorflow.keras": _OF_KERAS,
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
    "horovod.tensorflow.keras.elastic": "run KerasState",
    "horovod.keras": f"{_OF_KERAS} Adasum PartialDistributedOptimizer",
    "horovod.keras.callbacks": _CALLBACKS,
    "horovod.keras.elastic": "run KerasState",
    "horovod.common.elastic": "State ObjectState run_fn",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt "
    "HorovodVersionMismatchError",
    "horovod.common.process_sets": _SETS,
    "horovod.common.util": "check_extension extension_available "
    "gpu_available split_list is_iterable num_rank_is_power_2",
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.torch": f"{_PLACES} {_SETS} {_OPS} allreduce allreduce_ "
    "allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_ "
    "grouped_allreduce_async grouped_allreduce_async_ sparse_allreduce_async "
    "allgather allgather_async grouped_allgather grouped_allgather_async "
    "broadcast broadcast_ broadcast_async broadcast_async_ alltoall "
    "alltoall_async reducescatter reducescatter_async grouped_reducescatter "
    "grouped_reducescatter_async join barrier poll synchronize "
    "DistributedOptimizer broadcast_parameters broadcast_optimizer_state "
    "broadcast_object allgather_object Compression SyncBatchNorm elastic",
    "horovod.torch.elastic": "run TorchState ElasticSampler",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.torch.elastic.state": "TorchState",
    "horovod.torch.mpi_ops": "allreduce allgather broadcast synchronize poll",
    "horovod.torch.functions": "broadcast_parameters broadcast_object "
    "broadcast_optimizer_state allgather_object",
    "horovod.torch.compression": "Compression",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.mxnet": "init",
    "horovod.spark": "run run_elastic",
    "horovod.spark.keras": _ESTIMATOR_AND_MODEL.format("Keras"),
    "horovod.spark.torch": _ESTIMATOR_AND_MODEL.format("Torch"),
    "horovod.spark.lightning": _ESTIMATOR_AND_MODEL.format("Torch"),
    "horovod.spark.common.store": "Store LocalStore FilesystemStore HDFSStore "
    "DBFSLocalStore",
    "horovod.spark.common.backend": "Backend SparkBackend",
    "horovod.spark.task": "get_available_devices",
    "horovod.spark.tensorflow.compute_worker": "main",
    "horovod.ray": "RayExecutor ElasticRayExecutor RayHostDiscovery "
    "BaseHorovodWorker ray_logger",
    "horovod.ray.elastic": "ElasticRayExecutor RayHostDiscovery",
    "horovod.ray.runner": "RayExecutor",
    "horovod.runner": "run",
    "horovod.runner.launch": "run_commandline",
    "horovod.runner.js_run": "js_run",
    "horovod.runner.elastic.discovery": "HostDiscovery HostDiscoveryScript "
    "FixedHosts",
    "horovod.runner.elastic.driver": "ElasticDriver",
}
