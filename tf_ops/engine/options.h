// The settings of an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

class EventObserver;
class GpuSplit;
class TuningBoard;

// How an allreduce of many small tensors on GPUs goes.
enum class Packing : uint8_t {
  kBatch = 0,  // copied to and from the fusion buffer, with one call of CUDA
  kCopies,     // the same with a call for each tensor
  kNone,       // each where it is, all in one group of NCCL
};

struct GpuOptions {
  // The GPU of a rank that has used none yet; if it does not exist, GPU 0.
  int local_rank = 0;
  // Tensors smaller than `direct_bytes` are packed into a GPU buffer of
  // `fusion_buffer_bytes` and reduced there; others are reduced where they are.
  int64_t fusion_buffer_bytes = 64 << 20;
  int64_t direct_bytes = 4 << 20;
  std::optional<Packing> packing;     // of the small ones; unset: measured
  bool tells_packing = false;         // on stderr, if it was measured
  bool may_share = false;             // ranks may use one GPU
  bool done_in_stream_order = false;  // for all requests; see GpuPlace
  // How long NCCL may take to abort a communicator before it is left behind.
  int64_t end_patience_ms = 5000;
  // The engine of a process set: may hold its communicator. May be null.
  std::shared_ptr<GpuSplit> split;
};

struct EngineOptions {
  int64_t fusion_threshold_bytes = 128 << 20;  // requests run together
  int32_t cache_capacity = 1024;               // known requests; 0: no cache
  double cycle_time_ms = 0.0;           // > 0: wait this long to batch requests
  double stall_warning_seconds = 10.0;  // 0: never warn
  double stall_timeout_seconds = 60.0;  // 0: never fail
  GpuOptions gpu;

  // The engine of a process set: the global rank of each member, in the order
  // of its ranks. Empty: global ranks are the ranks.
  std::vector<int> global_ranks;
  // The process of each rank of the job, for messages: "host b, pid 7". Empty:
  // not known.
  std::vector<std::string> processes;
  // The host of each rank; empty: all are on one. The engine sets it.
  std::vector<int> hosts;
  // Finds calls made in the wrong process set. Returns another set in which
  // this process has request `name` in flight and of which one of the global
  // ranks `waiting` is a member; else kNotElsewhere or kElsewhereUnknown. May
  // be null. Called under the engine's locks: it must not call this engine.
  std::function<int(const std::string& name, const std::vector<int>& waiting)>
      pending_elsewhere;

  // What changes while the job runs; null: nothing does.
  std::shared_ptr<TuningBoard> tuning;

  // Told of each step of each request; see event.h.
  std::vector<std::shared_ptr<EventObserver>> observers;
};

}  // namespace hvd
