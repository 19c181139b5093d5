// The engine: takes requests from any thread, agrees with the other ranks on
// an order, runs the collectives and calls back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/core/request.h"

namespace hvd {

class Transport;

struct EngineOptions {
  int64_t fusion_threshold_bytes = 128 << 20;  // requests run together
  int32_t cache_capacity = 1024;               // known requests; 0: no cache
  double cycle_time_ms = 0.0;           // > 0: wait this long to batch requests
  double stall_warning_seconds = 10.0;  // 0: never warn
  double stall_timeout_seconds = 60.0;  // 0: never fail
};

struct EngineStats {
  uint64_t num_requests = 0;     // submitted
  uint64_t num_collectives = 0;  // run, after fusion
  uint64_t num_bytes = 0;        // input bytes of the collectives run
  uint64_t num_cache_hits = 0;
  uint64_t num_cache_misses = 0;
};

// Thread-safe. One instance per process outside of tests.
class Engine {
 public:
  virtual ~Engine() = default;

  // Never throws; `request.done` tells the outcome. It may run a small
  // collective that all ranks have asked for, and waits for them to run it too.
  virtual void Submit(Request request) = 0;

  // Leaves the job: pending requests fail with kShutdown, peers are told
  // `reason`. Idempotent; returns when the engine's threads have ended.
  virtual void Shutdown(const std::string& reason) = 0;

  // What the peers are told if this process ends without Shutdown.
  virtual void NoteExitReason(const std::string& reason) = 0;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual EngineStats stats() const = 0;

  static std::unique_ptr<Engine> Create(std::unique_ptr<Transport> transport,
                                        const EngineOptions& options);
};

// ---- The process's engine, for kernels and for Python ----

// Makes `engine` the one that SubmitGlobal uses; null: none. Returns the old
// one. The holder is leaked on purpose: kernels may run until the very end of
// the process.
std::shared_ptr<Engine> SetGlobalEngine(std::shared_ptr<Engine> engine);
std::shared_ptr<Engine> GlobalEngine();

// GlobalEngine()->Submit(), or done(kNotInitialized).
void SubmitGlobal(Request request);

}  // namespace hvd
