#include "tf_ops/python/job.h"
#include "tf_ops/process/local_topology.h"

#include <algorithm>
#include <memory>
#include <system_error>

#include "tf_ops/engine/gpu_split.h"
#include "tf_ops/host/in_memory/in_memory.h"
#include "tf_ops/host/shm/shm.h"
#include "tf_ops/python/raise.h"

namespace py = pybind11;

namespace hvd {
namespace {

ShmSegment AsSegment(const SegmentTuple& tuple) {
  ShmSegment segment;
  segment.pid = std::get<0>(tuple);
  segment.fd = std::get<1>(tuple);
  segment.token = std::get<2>(tuple);
  return segment;
}

std::shared_ptr<HostGroup> MakeGroup(
    int rank, uint64_t epoch, const std::vector<pid_t>& pids,
    const std::optional<SegmentTuple>& segment) {
  if (!segment.has_value()) {
    return std::move(CreateInMemory(1, epoch)[0]);
  }
  std::unique_ptr<HostGroup> group;
  RaiseIfError(AttachSegment(AsSegment(*segment), rank, pids, epoch, &group));
  return group;
}

std::shared_ptr<HostGroup> MakeGroupOfSet(
    int rank, const std::vector<int>& ranks, std::shared_ptr<Membership> job,
    const std::optional<SegmentTuple>& segment) {
  if (!segment.has_value()) {
    std::shared_ptr<HostGroup> alone =
        std::move(CreateInMemory(1, job->epoch())[0]);
    alone->membership()->BindToJob(std::move(job), ranks);
    return alone;
  }
  std::unique_ptr<HostGroup> group;
  RaiseIfError(AttachSegmentOfSet(AsSegment(*segment), rank, std::move(job),
                                  ranks, &group));
  return group;
}

void SetPendingElsewhere(int32_t id, EngineOptions* options) {
  options->pending_elsewhere = [id](const std::string& name,
                                    const std::vector<int>& waiting) {
    return PendingElsewhere(id, name, waiting);
  };
}

// Joins the group and starts its threads.
template <typename Make>
std::shared_ptr<Engine> Start(const Make& make_group,
                              const EngineOptions& options) {
  try {
    return Engine::Create(make_group(), options);
  } catch (const std::system_error& error) {  // from std::thread
    RaiseIfError(Status::Internal(
        std::string("starting a thread failed: ") + error.what() +
        ". Is the number of processes limited? See `ulimit -u`, and pids.max "
        "of the container's cgroup"));
    throw;
  }
}

}  // namespace

std::pair<int, py::bytes> CreateSegment(int size) {
  ShmSegment segment;
  RaiseIfError(hvd::CreateSegment(size, &segment));
  return {segment.fd, py::bytes(segment.token)};
}

void Init(int rank, int size, uint64_t epoch, const std::vector<pid_t>& pids,
          const std::optional<SegmentTuple>& segment, EngineOptions options) {
  if (GlobalEngine() != nullptr) {
    throw py::value_error("the engine is running: call shutdown() first");
  }
  if (size < 1 || rank < 0 || rank >= size ||
      pids.size() != static_cast<size_t>(size) ||
      (size > 1) != segment.has_value()) {
    throw py::value_error("`rank`, `size`, `pids` and `segment` do not match");
  }
  SetPendingElsewhere(0, &options);
  options.gpu.local_rank = GetLocalTopology().rank;
  SetGlobalEngine(
      Start([&] { return MakeGroup(rank, epoch, pids, segment); }, options));
}

void Shutdown(const std::string& reason) {
  py::gil_scoped_release release;  // callbacks may take the GIL
  ShutdownGlobal(reason);
}

void AddSet(int32_t id, const std::vector<int>& ranks,
            const std::optional<SegmentTuple>& segment) {
  const std::shared_ptr<Engine> global = EngineOrRaise();
  const auto self = std::find(ranks.begin(), ranks.end(), global->rank());
  const bool is_member = self != ranks.end();
  for (int rank : ranks) {
    if (rank < 0 || rank >= global->size()) {
      throw py::value_error("`ranks` must be ranks of the job");
    }
  }
  if (segment.has_value() != (is_member && ranks.size() > 1)) {
    throw py::value_error("`ranks` and `segment` do not match");
  }
  std::shared_ptr<Engine> engine;
  if (is_member) {
    EngineOptions options = global->options();
    options.global_ranks = ranks;
    options.gpu.split = std::make_shared<GpuSplit>();
    SetPendingElsewhere(id, &options);
    const int rank = static_cast<int>(self - ranks.begin());
    engine = Start(
        [&] {
          return MakeGroupOfSet(rank, ranks, global->membership(), segment);
        },
        options);
  }
  RaiseIfError(AddProcessSet(id, ranks, std::move(engine)));
}

void RemoveSet(int32_t id) {
  Status status;
  {
    py::gil_scoped_release release;  // callbacks may take the GIL
    status = RemoveProcessSet(id);
  }
  RaiseIfError(status);
}

std::vector<int> RanksOfSet(int32_t id) {
  std::vector<int> ranks;
  RaiseIfError(ProcessSetRanks(id, &ranks));
  return ranks;
}

std::shared_ptr<Engine> EngineOrRaise() {
  std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine == nullptr) {
    RaiseIfError(Status::NotInitialized("call hvd.init() first"));
  }
  return engine;
}

py::dict Stats() {
  EngineOrRaise();
  const EngineStats stats = TotalStats();
  py::dict result;
  result["num_requests"] = stats.num_requests;
  result["num_collectives"] = stats.num_collectives;
  result["num_bytes"] = stats.num_bytes;
  result["num_cache_hits"] = stats.num_cache_hits;
  result["num_cache_misses"] = stats.num_cache_misses;
  result["pending_ns"] = stats.pending_ns;
  return result;
}

uint64_t NumPending() {
  return GlobalEngine() == nullptr ? 0 : TotalStats().num_pending;
}

void NoteExitReason(const std::string& text) {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine != nullptr) engine->NoteExitReason(text);
}

void NoteFailure(const std::string& text) {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine != nullptr) engine->NoteFailure(text);
}

}  // namespace hvd
