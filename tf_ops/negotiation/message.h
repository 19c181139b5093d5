// What ranks and the coordinator tell each other, and its encoding.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request_params.h"
#include "tf_ops/negotiation/training_step.h"
#include "tf_ops/negotiation/tuning.h"

namespace hvd {

// A run of consecutive cache ids.
struct IdRun {
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const IdRun& o) const {
    return first == o.first && count == o.count;
  }
};

// Where a request is in flight, beside the id of a process set.
inline constexpr int kNotElsewhere = -1;
inline constexpr int kElsewhereUnknown = -2;

// From ranks to the coordinator.
struct RankMessage {
  enum class Type : uint8_t {
    kRequest = 1,  // `name` and `params`: the ranks are ready for it
    kReady,        // `ids`: ready for requests that all ranks know
    kDuplicate,    // `name` was submitted again while in flight
    kForgotten,    // `ids`: an eviction was seen
    kJoin,         // they take part in nothing more until all have joined
    kElsewhere,    // answers a Query for `name`
  };
  Type type = Type::kRequest;
  // Who says it, in ascending order, all of one group; empty: all of the group.
  std::vector<int32_t> ranks;
  int32_t last_rank = -1;  // kRequest, kReady: who came last; -1: not known
  TrainingStep step = 0;   // kRequest, kReady: that all of them are in
  std::string name;
  RequestParams params;
  std::vector<IdRun> ids;
  bool average_over_active = false;  // kJoin
  // kElsewhere: where the request is in flight.
  int32_t process_set_id = kNotElsewhere;
};

// Alltoall over several hosts: what the ranks of one host have to know. The
// lists are in order of these ranks and have a value for each rank of all
// hosts.
struct HostRows {
  std::vector<std::vector<int64_t>> sent;      // [rank of the host][to rank]
  std::vector<std::vector<int64_t>> received;  // [rank of the host][from rank]
  // The most rows that any rank gives another one: all ranks step through
  // equally many chunks.
  int64_t longest = 0;
};

// One request of a response: known by its id, or told in full.
struct ResponseItem {
  uint32_t cached_id = 0;  // not 0: a known request, the rest is empty
  std::string name;
  uint32_t new_id = 0;  // not 0: remember the request under this id
  // Rows of all ranks. Allgather: first dimensions, [tensor][rank]; alltoall
  // on one host: [from rank][to rank].
  std::vector<std::vector<int64_t>> rows;
  HostRows host_rows;
  // For ranks that have joined, which run it without a request of their own;
  // null if there are none.
  std::shared_ptr<const RequestParams> params;
  // On the coordinator alone, not sent: of a request that is told in full, its
  // kind; and the global rank that came last, and how long after the first, of
  // those that have not joined. -1: not known. Of ranks of one host, when there
  // are several, it sees only those that are later than kTellPartAfter.
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int last_rank = -1;
  std::chrono::nanoseconds late_by{0};
};

// Run `items` together.
struct Execution {
  std::vector<ResponseItem> items;
  // What Average divides by if some ranks have joined; 0: none has.
  int32_t divisor = 0;
};

// The call `name` fails.
struct Failure {
  std::string name;
  Status error;
  bool is_misplaced = false;   // some ranks call in another process set
  std::vector<int32_t> ranks;  // whom it concerns; empty: all
  // On the coordinator alone, not sent: see ResponseItem.
  int last_rank = -1;
  std::chrono::nanoseconds late_by{0};
};

// Forget `ids`.
struct Eviction {
  std::vector<IdRun> ids;
};

// Join ends: all have joined, or `error`.
struct JoinEnd {
  Status error;
  std::vector<int32_t> ranks;  // whom it concerns; empty: all
  int32_t last_rank = 0;       // a global rank
};

// Say whether `name` waits in another process set.
struct Query {
  std::string name;
  std::vector<int32_t> ranks;    // who is asked; empty: all
  std::vector<int32_t> waiting;  // global ranks that wait
};

// From the coordinator to all ranks; they act on responses in this order.
// Tunables: go on with these settings.
using Response =
    std::variant<Execution, Failure, Eviction, JoinEnd, Query, Tunables>;

// Whether a response for `ranks` concerns `rank`.
bool Concerns(const std::vector<int32_t>& ranks, int rank);

// Appends the id to the last run or begins a new one.
void AppendId(uint32_t id, std::vector<IdRun>* runs);
uint64_t NumIds(const std::vector<IdRun>& runs);

// Appends a frame: its length and the message.
void Encode(const RankMessage& message, std::vector<uint8_t>* bytes);
void Encode(const Response& response, std::vector<uint8_t>* bytes);

// What a message may hold of what it does not spell out: few bytes could
// otherwise ask for all memory. Lists and texts are as long as the frame says.
inline constexpr uint32_t kMaxFrameBytes = 1u << 28;
inline constexpr uint64_t kMaxIds = 1u << 20;  // known, evicted or forgotten
inline constexpr size_t kMaxDimensions = 1024;
inline constexpr int64_t kMaxCycleMicroseconds = 10'000'000;
struct MessageLimits {
  int32_t num_ranks;       // of the process set
  int32_t cache_capacity;  // alike on all ranks: ids that run at once
};

// Takes the first whole frame off `*bytes`, from `*offset` on. False if there
// is none yet. Internal if the frame makes no sense, or goes beyond `limits`.
Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              const MessageLimits& limits, RankMessage* message, bool* found);
Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              const MessageLimits& limits, Response* response, bool* found);

}  // namespace hvd
