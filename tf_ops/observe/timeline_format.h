// What a rank's timeline holds: records of one size, in the machine's byte
// order. hvd_keras/_observe/recording.py reads them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

inline constexpr size_t kTimelineRecordBytes = 64;

enum class TimelineType : uint8_t {
  kName = 1,    // TimelineText; `id` counts from 0 on
  kHeader = 2,  // TimelineText: JSON about the process, the first records
  kAdmitted = 3,
  kNegotiated = 4,
  kBegun = 5,
  kEnded = 6,
  kPhase = 7,
  kStep = 8,
  kClock = 9,
  kDropped = 10,
};

// All types but texts. What a type does not name is 0.
struct TimelineRecord {
  TimelineType type = TimelineType::kAdmitted;
  uint8_t kind = 0;            // kAdmitted: CollectiveKind; kPhase: Phase
  uint8_t op = 0;              // kAdmitted: ReduceOp
  uint8_t dtype = 0;           // kAdmitted: DataType of the first tensor
  int32_t process_set = 0;     // of requests and phases; kStep: the epoch
  uint64_t number = 0;         // Request::number; the step; how many dropped
  int64_t time_ns = 0;         // of it, or of its beginning
  uint64_t collective_id = 0;  // see Event
  uint64_t num_bytes = 0;      // kClock: the bound of the error, in ns
  int64_t other_ns = 0;        // kPhase, kStep: the end; kNegotiated: how late
                               // the last rank came; kClock: the offset
  uint32_t name = 0;           // kAdmitted: an id
  uint32_t num_tensors = 0;    // kAdmitted
  int32_t last_rank = 0;       // kNegotiated; -1: not known
  uint8_t code = 0;            // kEnded: StatusCode
  uint8_t is_on_gpu = 0;       // kAdmitted
  uint16_t unused = 0;
};
static_assert(sizeof(TimelineRecord) == kTimelineRecordBytes);

// A part of a text; the others follow.
struct TimelineText {
  static constexpr size_t kMostBytes = kTimelineRecordBytes - 8;

  TimelineType type = TimelineType::kName;
  uint8_t num_bytes = 0;
  uint16_t unused = 0;
  uint32_t id = 0;
  char bytes[kMostBytes] = {};
};
static_assert(sizeof(TimelineText) == kTimelineRecordBytes);

}  // namespace hvd
