#include "tf_ops/python/job.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "tf_ops/common/log.h"
#include "tf_ops/common/threads.h"
#include "tf_ops/engine/gpu_split.h"
#include "tf_ops/host/first_rank.h"
#include "tf_ops/host/in_memory/in_memory.h"
#include "tf_ops/host/shm/shm.h"
#include "tf_ops/observe/communication_meter.h"
#include "tf_ops/observe/flight_writer.h"
#include "tf_ops/observe/profiler_ranges.h"
#include "tf_ops/observe/timeline.h"
#include "tf_ops/python/raise.h"
#include "tf_ops/wire/tcp/tcp_links.h"

namespace py = pybind11;

namespace hvd {
namespace {

// Of the current job. Called with the GIL held.
std::shared_ptr<CommunicationMeter>& TheMeter() {
  static auto* const meter = new std::shared_ptr<CommunicationMeter>();
  return *meter;
}

// Where this rank is, and what it needs to talk to others.
struct Place {
  HostLayout layout;  // empty: there is one host
  int num_local_ranks = 0;
  int member = 0;
  std::string host;

  bool has_wire() const { return layout.num_hosts() > 1; }
  RegionShape shape() const { return {num_local_ranks, has_wire()}; }
};

// `rank`: in the set, which has `size` ranks.
Place PlaceOf(int rank, int size, const std::optional<Hosts>& hosts) {
  Place place;
  place.num_local_ranks = size;
  place.member = rank;
  if (!hosts.has_value()) return place;
  place.layout.ranks = hosts->ranks;
  place.host = hosts->own_host;
  place.member = -1;
  for (size_t host = 0; host < hosts->ranks.size(); ++host) {
    const std::vector<int>& ranks = hosts->ranks[host];
    if (!std::is_sorted(ranks.begin(), ranks.end())) break;
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    place.member = static_cast<int>(found - ranks.begin());
    place.num_local_ranks = static_cast<int>(ranks.size());
    place.layout.host = static_cast<int>(host);
    place.layout.member = place.member;
  }
  if (place.member < 0 || place.layout.size() != size ||
      hosts->ranks.size() < 2 || hosts->ranks[0].empty() ||
      hosts->ranks[0][0] != 0) {
    throw py::value_error(
        "`hosts` must hold each rank once, ascending in each host, rank 0 "
        "first");
  }
  return place;
}

ShmSegment AsSegment(const SegmentTuple& tuple, const Place& place) {
  ShmSegment segment;
  segment.pid = std::get<0>(tuple);
  segment.fd = std::get<1>(tuple);
  segment.token = std::get<2>(tuple);
  segment.shape = place.shape();
  return segment;
}

std::shared_ptr<HostGroup> MakeGroup(
    const Place& place, uint64_t epoch, const std::vector<pid_t>& pids,
    const std::optional<SegmentTuple>& segment) {
  if (!segment.has_value()) {
    return std::move(CreateInMemory(1, epoch)[0]);
  }
  std::unique_ptr<HostGroup> group;
  const std::vector<int> ranks =
      place.has_wire() ? place.layout.local_ranks() : std::vector<int>();
  RaiseIfError(AttachSegment(AsSegment(*segment, place), place.member, pids,
                             epoch, &group, place.host, ranks));
  return group;
}

// The members of the job's region that are members of the set's.
std::vector<int> JobMembers(const Place& place, const std::vector<int>& ranks,
                            const Members& job) {
  std::vector<int> local = ranks;
  if (place.has_wire()) {
    local.clear();
    for (int rank : place.layout.local_ranks()) {
      local.push_back(ranks[static_cast<size_t>(rank)]);
    }
  }
  std::vector<int> members;
  for (int rank : local) {
    for (int member = 0; member < job.size(); ++member) {
      if (job.global_rank(member) == rank) members.push_back(member);
    }
  }
  return members;
}

std::shared_ptr<HostGroup> MakeGroupOfSet(
    const Place& place, const std::vector<int>& ranks,
    std::shared_ptr<Membership> job,
    const std::optional<SegmentTuple>& segment) {
  const std::vector<int> members = JobMembers(place, ranks, job->members());
  if (!segment.has_value()) {
    std::shared_ptr<HostGroup> alone =
        std::move(CreateInMemory(1, job->epoch())[0]);
    alone->membership()->BindToJob(std::move(job), members);
    return alone;
  }
  std::unique_ptr<HostGroup> group;
  RaiseIfError(AttachSegmentOfSet(AsSegment(*segment, place), place.member,
                                  std::move(job), members, &group));
  return group;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Null on ranks that do not lead their host.
std::unique_ptr<ControlLinks> MakeLinks(const Place& place,
                                        const std::optional<Hosts>& hosts,
                                        std::shared_ptr<HostGroup> group,
                                        double warning_seconds) {
  if (!place.has_wire() || place.member != 0) return nullptr;
  if (hosts->sockets.size() != hosts->ranks.size() ||
      hosts->leader_names.size() != hosts->ranks.size() ||
      hosts->host_names.size() != hosts->ranks.size() ||
      (!hosts->job_ranks.empty() &&
       hosts->job_ranks.size() != hosts->ranks.size())) {
    throw py::value_error(
        "`sockets`, `leader_names`, `host_names` and `job_ranks` must have one "
        "for each host");
  }
  TcpLinksOptions options;
  options.host = place.layout.host;
  for (int fd : hosts->sockets) options.sockets.emplace_back(fd);
  options.leaders = hosts->leader_names;
  options.hosts = hosts->host_names;
  options.job_ranks = hosts->job_ranks;
  options.heartbeat = Milliseconds(hosts->heartbeat_seconds);
  options.timeout = Milliseconds(hosts->timeout_seconds);
  // `group` lives as long as one of these functions.
  options.ring = [group] { group->doorbell()->RingOwn(); };
  options.alive = [group, timeout = options.timeout] {
    FirstRank(group->membership()).NoteAlive(Clock::now(), timeout);
  };
  options.why_left = [group] { return group->membership()->WhyLeft(); };
  options.why_lost = [group] { return group->membership()->WhyLost(); };
  options.others_left = [group](const std::string& reason) {
    group->membership()->other_hosts().NoteLeft(reason);
  };
  options.others_lost = [group](const std::string& reason) {
    group->membership()->other_hosts().NoteLost(reason);
  };
  options.warning = Milliseconds(warning_seconds);
  options.warn = [group](const std::string& text) {
    LogWarning(group->membership()->members().own_global_rank(), text);
  };
  options.is_minority = [group] {
    group->membership()->other_hosts().NoteMinority();
  };
  if (options.host != 0 && !options.job_ranks.empty()) {
    options.clock_is_due = [] {
      return TheTimeline()->ClockIsDue(Clock::now());
    };
    options.clock_was_read = [](const ClockReading& reading) {
      TheTimeline()->OnClock(reading.at, reading.offset, reading.error);
    };
  }
  std::unique_ptr<ControlLinks> links;
  RaiseIfError(ConnectTcpLinks(std::move(options), &links));
  return links;
}

void SetPendingElsewhere(int32_t id, EngineOptions* options) {
  options->pending_elsewhere = [id](const std::string& name,
                                    const std::vector<int>& waiting) {
    return PendingElsewhere(id, name, waiting);
  };
}

// Joins the group and starts its threads.
template <typename Make>
std::shared_ptr<Engine> Start(const Make& make_group, const Place& place,
                              const std::optional<Hosts>& hosts,
                              const EngineOptions& options) {
  std::shared_ptr<Engine> engine;
  RaiseIfError(CatchThreadLimit([&] {
    const std::shared_ptr<HostGroup> group = make_group();
    engine = Engine::Create(
        group, options, place.layout,
        MakeLinks(place, hosts, group, options.stall_warning_seconds));
  }));
  return engine;
}

}  // namespace

std::pair<int, py::bytes> CreateJobSegment(int size, bool has_wire) {
  ShmSegment segment;
  RaiseIfError(hvd::CreateSegment({size, has_wire}, &segment));
  return {segment.fd, py::bytes(segment.token)};
}

void Init(int rank, int size, uint64_t epoch, const std::vector<pid_t>& pids,
          const std::optional<SegmentTuple>& segment,
          const std::optional<Hosts>& hosts, EngineOptions options) {
  if (GlobalEngine() != nullptr) {
    throw py::value_error("the engine is running: call shutdown() first");
  }
  if (size < 1 || rank < 0 || rank >= size ||
      (size > 1) != segment.has_value()) {
    throw py::value_error("`rank`, `size` and `segment` do not match");
  }
  if (!options.processes.empty() &&
      options.processes.size() != static_cast<size_t>(size)) {
    throw py::value_error("`processes` must have one for each rank");
  }
  const Place place = PlaceOf(rank, size, hosts);
  if (pids.size() != static_cast<size_t>(place.shape().num_members())) {
    throw py::value_error("`pids` must have one for each member of the region");
  }
  SetPendingElsewhere(0, &options);
  options.observers.push_back(TheFlightRecorder());
  TheMeter() = std::make_shared<CommunicationMeter>(size);
  options.observers.push_back(TheMeter());
  // Not owned: it is never destroyed.
  options.observers.emplace_back(std::shared_ptr<void>(), TheProfilerRanges());
  TheTimeline()->ForgetClock();
  options.observers.push_back(TheTimeline());
  SetGlobalEngine(Start([&] { return MakeGroup(place, epoch, pids, segment); },
                        place, hosts, options));
}

void Shutdown(const std::string& reason) {
  py::gil_scoped_release release;  // callbacks may take the GIL
  ShutdownGlobal(reason);
}

void AddSet(int32_t id, const std::vector<int>& ranks,
            const std::optional<SegmentTuple>& segment,
            const std::optional<Hosts>& hosts) {
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
    options.tuning = nullptr;  // steps are those of the whole job
    SetPendingElsewhere(id, &options);
    const int rank = static_cast<int>(self - ranks.begin());
    const Place place = PlaceOf(rank, static_cast<int>(ranks.size()), hosts);
    engine = Start(
        [&] {
          return MakeGroupOfSet(place, ranks, global->membership(), segment);
        },
        place, hosts, options);
  }
  RaiseIfError(AddProcessSet(id, ranks, std::move(engine)));
}

void RemoveSet(int32_t id) {
  RaiseIfError(WithoutGil([id] { return RemoveProcessSet(id); }));
}

std::vector<int> RanksOfSet(int32_t id) {
  std::vector<int> ranks;
  RaiseIfError(ProcessSetRanks(id, &ranks));
  return ranks;
}

uint64_t NumJoins(int32_t id) {
  const std::shared_ptr<Engine> engine = EngineOf(id);
  return engine == nullptr ? 0 : engine->stats().num_joins;
}

void CheckPeers() { RaiseIfError(EngineOrRaise()->membership()->CheckPeers()); }

bool IsMinority() {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  return engine != nullptr && engine->membership()->other_hosts().IsMinority();
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
  const CommunicationSums sums = TheMeter()->Sums();
  result["running_ns"] = sums.running_ns;
  result["num_steps"] = sums.num_steps;
  return result;
}

uint64_t NumShared() {
  return GlobalEngine() == nullptr ? 0 : TheMeter()->Sums().num_shared;
}

uint64_t NumBroadcastBytes() {
  return GlobalEngine() == nullptr ? 0 : TheMeter()->Sums().num_broadcast_bytes;
}

uint64_t NumSame() {
  return GlobalEngine() == nullptr ? 0 : TheMeter()->Sums().num_same;
}

std::vector<std::pair<uint64_t, uint64_t>> LastRanks() {
  EngineOrRaise();
  const CommunicationSums sums = TheMeter()->Sums();
  std::vector<std::pair<uint64_t, uint64_t>> ranks;
  for (size_t rank = 0; rank < sums.num_last.size(); ++rank) {
    ranks.emplace_back(sums.num_last[rank], sums.late_ns[rank]);
  }
  return ranks;
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
