#include "tf_ops/negotiation/join_round.h"

#include <utility>

#include "tf_ops/negotiation/mismatch.h"

namespace hvd {

JoinRound::JoinRound(const std::vector<int>* global_ranks)
    : global_ranks_(*global_ranks), ranks_(global_ranks->size()) {}

bool JoinRound::Join(int rank, bool average_over_active) {
  State& state = ranks_[static_cast<size_t>(rank)];
  if (state.owes_error) {
    state.owes_error = false;
    failed_.push_back({error_, {rank}});
    return false;
  }
  state.joined = true;
  state.average_over_active = average_over_active;
  last_rank_ = rank;
  if (++num_joined_ == 1) average_over_active_ = average_over_active;
  if (average_over_active == average_over_active_) return true;
  Fail();
  return false;
}

// The ranks that have not joined yet get the same error when they do.
void JoinRound::Fail() {
  JoinEnd end;
  std::vector<ValueOnRank> values;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].owes_error = !ranks_[i].joined;
    if (!ranks_[i].joined) continue;
    end.ranks.push_back(static_cast<int32_t>(i));
    values.push_back({ranks_[i].average_over_active
                          ? "average_over_active=true"
                          : "average_over_active=false",
                      global_ranks_[i]});
  }
  error_ = Disagreement("the average", values);
  end.error = error_;
  failed_.push_back(std::move(end));
  Reset();
}

void JoinRound::Reset() {
  for (State& state : ranks_) state.joined = false;
  num_joined_ = 0;
}

void JoinRound::TakeResponses(std::vector<Response>* responses) {
  for (JoinEnd& end : failed_) responses->push_back(std::move(end));
  failed_.clear();
  if (num_joined_ < ranks_.size()) return;
  const int last_rank = global_ranks_[static_cast<size_t>(last_rank_)];
  responses->push_back(JoinEnd{Status(), /*ranks=*/{}, last_rank});
  Reset();
}

}  // namespace hvd
