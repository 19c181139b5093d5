#include "tf_ops/process/global_engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "tf_ops/common/keep.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {
namespace {

struct ProcessSet {
  std::vector<int> ranks;
  std::shared_ptr<Engine> engine;  // null: this rank is not a member
};

// Never destroyed: kernels may still run while the process ends.
struct Holder {
  // The engine of set 0, borrowed from `sets`: SubmitGlobal takes no lock.
  std::atomic<Engine*> global{nullptr};
  std::atomic<int> num_submitting{0};  // threads that may be using `global`
  std::atomic<TrainingStep> step{0};
  std::atomic<bool> is_forked{false};  // this process is a child of a rank

  Mutex mu;  // held for a moment at a time; waits for no engine
  std::map<int32_t, ProcessSet> sets GUARDED_BY(mu);  // 0 among them
  EngineStats stats_of_removed GUARDED_BY(mu);
};

Holder& TheHolder();

void BeforeFork() NO_THREAD_SAFETY_ANALYSIS { TheHolder().mu.lock(); }

void AfterForkInParent() NO_THREAD_SAFETY_ANALYSIS { TheHolder().mu.unlock(); }

// A child shares the memory of the job but is not a rank. It must not touch the
// engines it inherits, not even to end or destroy them: they are leaked.
void AfterForkInChild() NO_THREAD_SAFETY_ANALYSIS {
  Holder& holder = TheHolder();
  if (holder.global.exchange(nullptr) != nullptr) holder.is_forked.store(true);
  holder.num_submitting.store(0);
  new std::map<int32_t, ProcessSet>(std::exchange(holder.sets, {}));
  holder.mu.unlock();
}

Holder& TheHolder() {
  static Holder* const holder = [] {
    pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    return new Holder();
  }();
  return *holder;
}

void Add(const EngineStats& from, EngineStats* to) {
  to->num_requests += from.num_requests;
  to->num_collectives += from.num_collectives;
  to->num_bytes += from.num_bytes;
  to->num_joins += from.num_joins;
  to->num_cache_hits += from.num_cache_hits;
  to->num_cache_misses += from.num_cache_misses;
  to->num_pending += from.num_pending;
  to->pending_ns += from.pending_ns;
}

// A thread that is submitting may still hold the engine. It must not be the one
// to destroy it, least of all if it is one of the engine's own: rather keep it.
void Destroy(std::shared_ptr<Engine> engine,
             const std::atomic<int>* num_users) {
  const auto is_used = [&] {
    return engine.use_count() > 1 ||
           (num_users != nullptr && num_users->load() > 0);
  };
  for (int i = 0; i < 1000 && is_used(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (is_used()) KeepForever(std::move(engine));
}

Status NotInitialized() {
  return Status::NotInitialized("call hvd.init() first");
}

Status DoesNotExist(int32_t id) {
  return Status::InvalidArgument("process set " + std::to_string(id) +
                                 " does not exist");
}

Status CheckRanks(const std::vector<int>& ranks, const Engine& global,
                  bool is_member) {
  const bool grow =
      std::is_sorted(ranks.begin(), ranks.end()) &&
      std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (ranks.empty() || !grow || ranks.front() < 0 ||
      ranks.back() >= global.size()) {
    return Status::InvalidArgument(
        "the ranks of a process set must be ascending and in [0, " +
        std::to_string(global.size()) + ")");
  }
  const bool is_named =
      std::binary_search(ranks.begin(), ranks.end(), global.rank());
  if (is_named == is_member) return Status::Ok();
  return Status::InvalidArgument("rank " + std::to_string(global.rank()) +
                                 " must have an engine if, and only if, it is "
                                 "a member of the process set");
}

// The engine of `id`, which is not 0.
Status Find(int32_t id, std::shared_ptr<Engine>* engine) {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  const auto global = holder.sets.find(0);
  if (global == holder.sets.end()) return NotInitialized();
  const auto found = holder.sets.find(id);
  if (found == holder.sets.end()) return DoesNotExist(id);
  *engine = found->second.engine;
  if (*engine != nullptr) return Status::Ok();
  return Status::InvalidArgument(
      "rank " + std::to_string(global->second.engine->rank()) +
      " is not in process set " + std::to_string(id) + " (" +
      RanksToString(found->second.ranks) + ")");
}

void Refuse(const Request& request, const Status& status) {
  request.done(
      status.WithContext(std::string(CollectiveKindName(request.kind)) + " '" +
                         request.name + "'"));
}

}  // namespace

void SetGlobalEngine(std::shared_ptr<Engine> engine) {
  Holder& holder = TheHolder();
  ProcessSet all;
  for (int rank = 0; rank < engine->size(); ++rank) all.ranks.push_back(rank);
  all.engine = std::move(engine);
  MutexLock lock(&holder.mu);
  holder.stats_of_removed = EngineStats();
  holder.is_forked.store(false);
  holder.global.store(all.engine.get());
  holder.sets[0] = std::move(all);
}

std::shared_ptr<Engine> GlobalEngine() { return EngineOf(0); }

std::shared_ptr<Engine> EngineOf(int32_t id) {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  const auto found = holder.sets.find(id);
  return found == holder.sets.end() ? nullptr : found->second.engine;
}

Status AddProcessSet(int32_t id, std::vector<int> ranks,
                     std::shared_ptr<Engine> engine) {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  const auto global = holder.sets.find(0);
  if (global == holder.sets.end()) return NotInitialized();
  HVD_RETURN_IF_ERROR(
      CheckRanks(ranks, *global->second.engine, engine != nullptr));
  if (id <= 0 || holder.sets.count(id) > 0) {
    return Status::InvalidArgument("process set " + std::to_string(id) +
                                   " already exists");
  }
  holder.sets[id] = ProcessSet{std::move(ranks), std::move(engine)};
  return Status::Ok();
}

Status RemoveProcessSet(int32_t id) {
  Holder& holder = TheHolder();
  std::shared_ptr<Engine> engine;
  {
    MutexLock lock(&holder.mu);
    if (holder.sets.empty()) return NotInitialized();
    const auto found = holder.sets.find(id);
    if (id == 0 || found == holder.sets.end()) return DoesNotExist(id);
    engine = std::move(found->second.engine);
    holder.sets.erase(found);
  }
  if (engine == nullptr) return Status::Ok();
  engine->Remove("process set " + std::to_string(id) + " was removed");
  {
    MutexLock lock(&holder.mu);
    Add(engine->stats(), &holder.stats_of_removed);
  }
  Destroy(std::move(engine), nullptr);
  return Status::Ok();
}

std::vector<int32_t> ProcessSetIds() {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  std::vector<int32_t> ids;
  for (const auto& [id, set] : holder.sets) ids.push_back(id);
  return ids;
}

Status ProcessSetRanks(int32_t id, std::vector<int>* ranks) {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  if (holder.sets.empty()) return NotInitialized();
  const auto found = holder.sets.find(id);
  if (found == holder.sets.end()) return DoesNotExist(id);
  *ranks = found->second.ranks;
  return Status::Ok();
}

EngineStats TotalStats() {
  Holder& holder = TheHolder();
  MutexLock lock(&holder.mu);
  EngineStats total = holder.stats_of_removed;
  for (const auto& [id, set] : holder.sets) {
    if (set.engine != nullptr) Add(set.engine->stats(), &total);
  }
  return total;
}

int PendingElsewhere(int32_t own_id, const std::string& name,
                     const std::vector<int>& waiting) {
  Holder& holder = TheHolder();
  std::vector<std::pair<int32_t, std::shared_ptr<Engine>>> others;
  if (!holder.mu.try_lock()) return kElsewhereUnknown;
  for (const auto& [id, set] : holder.sets) {
    if (id == own_id || set.engine == nullptr) continue;
    const std::vector<int>& ranks = set.ranks;
    if (std::any_of(waiting.begin(), waiting.end(), [&ranks](int rank) {
          return std::binary_search(ranks.begin(), ranks.end(), rank);
        })) {
      others.emplace_back(id, set.engine);
    }
  }
  holder.mu.unlock();
  int answer = kNotElsewhere;
  for (const auto& [id, engine] : others) {
    // Of two engines that ask each other at the same time, only one may wait.
    const std::chrono::milliseconds patience{id < own_id ? 20 : 0};
    const std::optional<bool> found = engine->IsInFlight(name, patience);
    if (found.value_or(false)) return id;
    if (!found.has_value()) answer = kElsewhereUnknown;
  }
  return answer;
}

void ShutdownGlobal(const std::string& reason) {
  Holder& holder = TheHolder();
  std::map<int32_t, ProcessSet> sets;
  {
    MutexLock lock(&holder.mu);
    holder.global.store(nullptr);
    sets.swap(holder.sets);
  }
  // The global engine, which is the first, goes last: it knows who died.
  for (auto set = sets.rbegin(); set != sets.rend(); ++set) {
    if (set->second.engine != nullptr) set->second.engine->Shutdown(reason);
  }
  for (auto set = sets.rbegin(); set != sets.rend(); ++set) {
    if (set->second.engine == nullptr) continue;
    Destroy(std::move(set->second.engine),
            set->first == 0 ? &holder.num_submitting : nullptr);
  }
}

void SetTrainingStep(TrainingStep step) {
  TheHolder().step.store(step, std::memory_order_relaxed);
}

void SubmitGlobal(Request request) {
  Holder& holder = TheHolder();
  request.step = holder.step.load(std::memory_order_relaxed);
  if (holder.is_forked.load(std::memory_order_relaxed)) {
    Refuse(request, Status::NotInitialized(
                        "this process was forked after hvd.init(), so it is "
                        "not a rank"));
    return;
  }
  if (request.process_set_id != 0) {
    std::shared_ptr<Engine> engine;
    const Status status = Find(request.process_set_id, &engine);
    if (!status.ok()) return Refuse(request, status);
    engine->Submit(std::move(request));
    return;
  }
  // Either ShutdownGlobal sees this count, or we see that the engine is gone.
  holder.num_submitting.fetch_add(1);
  Engine* const engine = holder.global.load();
  if (engine != nullptr) {
    engine->Submit(std::move(request));
  } else {
    Refuse(request, NotInitialized());
  }
  holder.num_submitting.fetch_sub(1);
}

}  // namespace hvd
