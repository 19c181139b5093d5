// The engine: takes requests from any thread, agrees with the other ranks on
// an order, runs the collectives and calls back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

class GpuSplit;
class Transport;

// Answers of EngineOptions::pending_elsewhere, beside the id of a set.
inline constexpr int kNotElsewhere = -1;
inline constexpr int kElsewhereUnknown = -2;

struct GpuOptions {
  // Tensors of less than `direct_bytes` are packed into a buffer on the GPU of
  // `fusion_buffer_bytes` and reduced there; others are reduced where they are.
  int64_t fusion_buffer_bytes = 64 << 20;
  int64_t direct_bytes = 4 << 20;
  bool done_in_stream_order = false;  // all requests, see GpuPlace
  // Of a process set: where its communicator may be; null: nowhere.
  std::shared_ptr<GpuSplit> split;
};

struct EngineOptions {
  int64_t fusion_threshold_bytes = 128 << 20;  // requests run together
  int32_t cache_capacity = 1024;               // known requests; 0: no cache
  double cycle_time_ms = 0.0;           // > 0: wait this long to batch requests
  double stall_warning_seconds = 10.0;  // 0: never warn
  double stall_timeout_seconds = 60.0;  // 0: never fail
  GpuOptions gpu;

  // The engine of a process set: the global rank of each of its members, in
  // the order of the transport's ranks. Empty: the same numbers.
  std::vector<int> global_ranks;
  // Finds calls that went to another process set by mistake: another set, of
  // which one of the global ranks `waiting` is a member, in which a request
  // `name` of this process is in flight; kNotElsewhere or kElsewhereUnknown
  // otherwise. May be null. Called under the engine's locks: it must not call
  // back into this engine.
  std::function<int(const std::string& name, const std::vector<int>& waiting)>
      pending_elsewhere;
};

struct EngineStats {
  uint64_t num_requests = 0;     // submitted
  uint64_t num_collectives = 0;  // run, after fusion
  uint64_t num_bytes = 0;        // input bytes of the collectives run
  uint64_t num_cache_hits = 0;
  uint64_t num_cache_misses = 0;
  uint64_t pending_ns = 0;  // time in which requests were in flight
};

// Thread-safe. Outside of tests one instance a process set of this process.
class Engine {
 public:
  virtual ~Engine() = default;

  // Never throws; `request.done` tells the outcome. It may run a small
  // collective that all ranks have asked for, and waits for them to run it too.
  virtual void Submit(Request request) = 0;

  // Leaves the job: pending requests fail with kShutdown, peers are told
  // `reason`. Idempotent; returns when the engine's threads have ended.
  virtual void Shutdown(const std::string& reason) = 0;

  // Ends the engine of a process set that all its ranks remove: pending
  // requests fail with kShutdown and `reason`, and peers are told nothing, for
  // they do the same. Otherwise as Shutdown.
  virtual void Remove(const std::string& reason) = 0;

  // What the peers are told if this process ends without Shutdown.
  virtual void NoteExitReason(const std::string& reason) = 0;
  // See Transport::NoteFailure.
  virtual void NoteFailure(const std::string& reason) = 0;

  // Whether a request of this name is in flight; none if that could not be
  // seen within `patience`.
  virtual std::optional<bool> IsInFlight(
      const std::string& name, std::chrono::milliseconds patience) = 0;

  virtual int rank() const = 0;  // in the process set
  virtual int size() const = 0;
  virtual EngineStats stats() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual const std::shared_ptr<Transport>& transport() const = 0;

  static std::unique_ptr<Engine> Create(std::shared_ptr<Transport> transport,
                                        const EngineOptions& options);
};

// ---- The engines of this process, for kernels and for Python ----

// Makes `engine` that of process set 0, all ranks. There must be none.
void SetGlobalEngine(std::shared_ptr<Engine> engine);
std::shared_ptr<Engine> GlobalEngine();  // null: none
// That of process set `id`; null: there is none, or not on this rank.
std::shared_ptr<Engine> EngineOf(int32_t id);

// Registers process set `id` of the global ranks `ranks`, which grow; `engine`
// is null if this rank is not one of them. InvalidArgument, and nothing is
// registered, if that cannot be.
Status AddProcessSet(int32_t id, std::vector<int> ranks,
                     std::shared_ptr<Engine> engine);
// Ends its engine, if there is one, and forgets it.
Status RemoveProcessSet(int32_t id);
// Of all process sets, 0 among them; none without a global engine.
std::vector<int32_t> ProcessSetIds();
// The global ranks of a process set. NotInitialized without a global engine,
// InvalidArgument if there is no such set.
Status ProcessSetRanks(int32_t id, std::vector<int>* ranks);
// The sum over all process sets since SetGlobalEngine.
EngineStats TotalStats();
// For EngineOptions::pending_elsewhere of the engine of `own_id`. Two engines
// that ask each other do not wait for one another.
int PendingElsewhere(int32_t own_id, const std::string& name,
                     const std::vector<int>& waiting);

// Ends all engines, those of the process sets first; forgets all of them.
void ShutdownGlobal(const std::string& reason);

// Hands the request to the engine of its process set; where there is none,
// done(kNotInitialized) or done(kInvalidArgument).
void SubmitGlobal(Request request);

}  // namespace hvd
