// Speaks to the coordinator for all ranks of one host, so that its work grows
// with hosts, not with ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {

// What only some ranks of a host have come for is told after this time: then
// the coordinator knows who waits, for stalls and for calls that cross. Four
// ranks that trained on two busy cores began a step within 7 ms of each other,
// 99 of 100 steps within 23 ms (2 ranks: 1 and 9 ms). To tell a part too early
// costs one more message; stalls count from seconds on.
inline constexpr std::chrono::milliseconds kTellPartAfter{20};

// Not thread-safe: the negotiator of the host's first rank alone uses it. Knows
// nothing of how messages travel.
//
// A call that all ranks of the host have come for is told once, for the whole
// host. Ranks that come with other parameters are told apart, so that the
// coordinator can name them; those of an allgather or alltoall mostly differ.
class HostCoordinator {
 public:
  // `ranks`: those of the host, in ascending order.
  explicit HostCoordinator(std::vector<int> ranks);

  // Takes in a message of the rank `ranks[local_rank]`. Internal if it is
  // invalid.
  Status OnMessage(int local_rank, const RankMessage& message,
                   Clock::time_point now);
  // Takes in what the coordinator tells, before the ranks of the host hear it.
  void OnResponse(const Response& response);

  // Returns what the coordinator has to hear now, in order.
  std::vector<RankMessage> TakeMessages(Clock::time_point now);
  // Whether something is held back until kTellPartAfter.
  bool holds_back() const { return num_held_ > 0; }

 private:
  // Whether a rank has come for a call, and how.
  struct Arrival {
    enum class State : uint8_t { kAbsent, kHeld, kTold };
    State state = State::kAbsent;
    uint32_t id = 0;  // 0: with `params`
    Params params;
    TrainingStep step = 0;
  };
  // All that is known under a name, while there is anything.
  struct Call {
    std::string name;
    std::vector<Arrival> by_rank;  // local
    size_t num_come = 0;           // held or told
    size_t num_held = 0;
    Clock::time_point first_held;
    uint64_t number_held = 0;  // of that time: the order among calls
    int last_rank = -1;
    int num_ids = 0;  // that some rank of the host may still use
  };
  struct KnownId {
    Call* call;
    size_t num_forgotten = 0;  // ranks
  };
  // Ranks that have come in the same way.
  struct Party {
    const Arrival* like;
    std::vector<int32_t> ranks;
  };

  std::string NameOf(int local_rank) const;
  Status OnIds(int local_rank, const RankMessage& message,
               Clock::time_point now);
  void OnForgotten(uint32_t id);
  void OnItem(const ResponseItem& item);
  void OnFailure(const Failure& failure);
  // What `ranks` say next under the name is about another call.
  void ForgetTold(const std::vector<int32_t>& ranks, Call* call);
  void OnJoin(int local_rank);
  void Arrive(Call* call, int local_rank, Arrival arrival,
              Clock::time_point now);
  // Whether every rank has come or has joined.
  bool IsComplete(const Call& call) const;

  // Tells what is held of the call.
  void Tell(Call* call);
  // Tells all that was first held at `limit` or before.
  void TellHeld(Clock::time_point limit);
  void TellAllHeld() { TellHeld(Clock::time_point::max()); }
  void TellParty(const Call& call, const Party& party);
  void TellReady(const Arrival& like, std::vector<int32_t> ranks,
                 int32_t last_rank);
  std::vector<Party> PartiesOf(const Call& call) const;
  // Whether two ranks that come so can be told together.
  static bool AreAlike(const Arrival& a, const Arrival& b);
  // Whether all ranks have just come by one id.
  bool HasCommonId(const Call& call) const;
  // Passes on what one rank says.
  void Pass(int local_rank, const RankMessage& message);
  // Adds to the last message if it is like `message` but for its ids.
  RankMessage* Append(RankMessage::Type type, std::vector<int32_t> ranks,
                      TrainingStep step = 0);

  Call* FindOrAdd(const std::string& name);
  Call* Find(const std::string& name);      // may be null
  Call* FindFor(const ResponseItem& item);  // likewise
  void Forget(Arrival* arrival, Call* call);
  void DropIfUnused(Call* call);

  const std::vector<int> ranks_;
  std::unordered_map<std::string, std::unique_ptr<Call>> calls_;
  std::unordered_map<uint32_t, KnownId> ids_;
  // Calls that failed while a rank had not come. Ranks that come for them now
  // are told at once, in order: else calls made later could be told before.
  std::unordered_set<std::string> late_;
  std::vector<bool> joined_;  // by local rank
  size_t num_joined_ = 0;
  size_t num_held_ = 0;  // calls of which something is held
  uint64_t num_ever_held_ = 0;
  Clock::time_point next_tell_{};
  std::vector<RankMessage> messages_;  // to be told
};

}  // namespace hvd
