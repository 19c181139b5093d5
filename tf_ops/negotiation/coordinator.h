// Decides, on rank 0, what all ranks run next: pairs requests by name, checks
// them against each other, remembers the ones it has seen, fuses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/call.h"
#include "tf_ops/negotiation/join_round.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/mismatch.h"
#include "tf_ops/negotiation/stall_monitor.h"
#include "tf_ops/negotiation/tuner.h"

namespace hvd {

struct CoordinatorOptions {
  int64_t fusion_threshold_bytes = 128 << 20;
  int32_t cache_capacity = 1024;
  StallOptions stalls;
  std::vector<int> global_ranks;  // see EngineOptions; empty: the same numbers
  // By rank: the number of its host, for ranks of several hosts; the
  // coordinator is on host 0. Empty: all are on one.
  std::vector<int> hosts;
  std::shared_ptr<TuningBoard> tuning;  // null: nothing is tuned
};

// Not thread-safe: the worker of rank 0 alone uses it. Knows nothing of how
// messages travel.
class Coordinator {
 public:
  Coordinator(int size, const CoordinatorOptions& options);

  // Takes in a message of ranks of `group`: a host, or the rank of that number
  // if all are on one host. Internal if it is invalid.
  Status OnMessage(int group, const RankMessage& message,
                   Clock::time_point now);

  // Returns what all ranks have to do now, in order.
  std::vector<Response> TakeResponses();

  // Returns a warning for each call that has waited long. Calls that have
  // waited too long fail with the next TakeResponses. See StallMonitor.
  std::vector<std::string> CheckStalls(Clock::time_point now);

  bool has_pending() const { return num_pending_ > 0 || num_ready_ > 0; }

 private:
  // A call while it is pending, and what the cache holds of its name.
  struct Entry : Call {
    using Call::Call;
    bool all_cached = true;  // every rank came with an id
    // If ranks have joined: whether to average over the others alone.
    bool average_over_active = false;
    int duplicate_rank = -1;
    uint32_t cache_id = 0;  // 0: not in the cache
    KnownParams cached;
    uint64_t last_use = 0;
  };
  // What an evicted id meant, until no rank can still send it.
  struct Retired {
    std::string name;
    KnownParams cached;
    int num_forgotten = 0;  // ranks
  };
  // Who says a message.
  struct Speakers {
    int group;
    std::vector<int> some;  // if it is not the whole group
    int last_rank;          // see RankMessage
    TrainingStep step;      // likewise
    Clock::time_point now;
  };
  // All who are ready for the same ids.
  struct Ready {
    std::vector<IdRun> ids;
    std::vector<Speakers> all;
  };

  Status CheckSpeakers(int group, const RankMessage& message) const;
  Status CheckIds(int group, const std::vector<IdRun>& ids) const;
  Status OnReady(const Speakers& speakers, const std::vector<IdRun>& ids);
  void TakeInReady();
  void TakeIn(uint32_t id, const std::vector<Speakers>& all);
  std::string NameOf(int group) const;
  const std::vector<int>& RanksOf(const Speakers& speakers) const {
    return speakers.some.empty() ? groups_.ranks_of(speakers.group)
                                 : speakers.some;
  }
  void OnRequest(const Speakers& speakers, const RankMessage& message);
  void OnJoin(int rank, bool average_over_active);
  void OnElsewhere(int rank, const RankMessage& message, Clock::time_point now);
  void Apply(StallMonitor::Findings findings);
  // Adds the settings that all ranks have to change to, if there are any.
  void Tune(std::vector<Response>* responses);
  Status OnForgotten(uint32_t id, size_t num_ranks);
  void Arrive(Entry* entry, const Speakers& speakers, const KnownParams& params,
              bool by_id);
  // The same, but does not look whether that completes it.
  void Add(Entry* entry, const Speakers& speakers, const KnownParams& params,
           bool by_id);
  void CompleteIfAllCame(Entry* entry);
  // Answers those who come for a call that has failed without them. False if
  // that is all; else `*speakers` are the others.
  bool AnswerLate(const std::string& name, Speakers* speakers);
  Entry* FindOrAdd(const std::string& name);
  void Reset(Entry* entry);  // no longer pending; drops it if not cached

  // Decides what a complete entry gets: `*item` to run, or an error.
  Status Conclude(Entry* entry, ResponseItem* item);
  Status Check(const Entry& entry, const ParamsByRank& by_rank) const;
  Status CheckWithoutJoined(const Entry& entry) const;
  int32_t DivisorOf(const Entry& entry) const;
  void Remember(Entry* entry, ParamsByRank by_rank);
  void Retire(Entry* entry);
  void EvictIfFull();

  int GlobalRank(int rank) const {
    return options_.global_ranks[static_cast<size_t>(rank)];
  }

  const int size_;
  const CoordinatorOptions options_;
  const RankGroups groups_;
  int64_t fusion_threshold_bytes_;
  std::unique_ptr<Tuner> tuner_;  // null: nothing is tuned
  JoinRound joins_;
  StallMonitor stalls_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
  std::unordered_map<uint32_t, Entry*> by_id_;
  std::unordered_map<uint32_t, Retired> retired_;
  std::vector<Ready> ready_;      // the first `num_ready_` are to be taken in
  size_t num_ready_ = 0;          // before anything else; others are for reuse
  std::vector<Entry*> complete_;  // all ranks have come, in that order
  std::vector<Response> early_;   // to be told before anything else
  std::vector<IdRun> evictions_;  // to be told next
  size_t num_pending_ = 0;
  uint32_t next_id_ = 1;
  uint64_t num_uses_ = 0;
};

}  // namespace hvd
