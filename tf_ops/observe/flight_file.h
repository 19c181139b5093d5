// A flight record as a file: JSON lines, the first about the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/observe/flight_recorder.h"

namespace hvd {

// What the first line says.
struct FlightHeader {
  int rank = 0;
  int size = 1;
  std::string host;
  std::string reason;      // why it was written
  uint64_t num_steps = 0;  // of training, which have ended
  // Where `fit` is, from 1 on; 0: it does not run.
  uint32_t epoch = 0;
  uint32_t batch = 0;
};

// Replaces `path` as a whole. All times are nanoseconds of the monotonic clock;
// the first line holds "monotonic_ns" and "unix_ns" of one moment.
Status WriteFlightFile(const std::string& path, const FlightHeader& header,
                       const std::vector<FlightRecord>& records);

}  // namespace hvd
