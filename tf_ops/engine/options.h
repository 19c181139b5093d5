// How an engine works.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hvd {

class EventObserver;
class GpuSplit;

struct GpuOptions {
  // A rank that has used no GPU yet takes this one, or 0 if there is no such.
  int local_rank = 0;
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
  // the order of its ranks. Empty: the same numbers.
  std::vector<int> global_ranks;
  // Finds calls that went to another process set by mistake: another set, of
  // which one of the global ranks `waiting` is a member, in which a request
  // `name` of this process is in flight; kNotElsewhere or kElsewhereUnknown
  // otherwise. May be null. Called under the engine's locks: it must not call
  // back into this engine.
  std::function<int(const std::string& name, const std::vector<int>& waiting)>
      pending_elsewhere;

  // Who hears of each step of each request, see event.h.
  std::vector<std::shared_ptr<EventObserver>> observers;
};

}  // namespace hvd
