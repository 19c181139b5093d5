// What an engine has done.
#pragma once

#include <cstdint>

namespace hvd {

struct EngineStats {
  uint64_t num_requests = 0;     // submitted
  uint64_t num_collectives = 0;  // run, after fusion
  uint64_t num_bytes = 0;        // input bytes of the collectives run
  uint64_t num_joins = 0;        // that have ended
  uint64_t num_cache_hits = 0;
  uint64_t num_cache_misses = 0;
  uint64_t num_pending = 0;  // requests in flight now
  uint64_t pending_ns = 0;   // time in which requests were in flight
};

}  // namespace hvd
