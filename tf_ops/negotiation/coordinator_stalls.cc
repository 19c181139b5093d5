// What the coordinator does about calls that some ranks do not come for.
#include <algorithm>
#include <utility>

#include "tf_ops/negotiation/coordinator.h"

namespace hvd {
namespace {

// When the missing ranks are asked, where there is no warning.
constexpr double kQuerySeconds = 10.0;

std::chrono::duration<double> Seconds(double seconds) {
  return std::chrono::duration<double>(seconds);
}

std::string SecondsToString(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string CrossingText(const std::string& name, int rank) {
  return "; rank " + std::to_string(rank) + " waits for '" + name +
         "' instead: calls without `name` are numbered as they are made or "
         "traced, so give names where ranks do that in other orders";
}

std::string SetName(int process_set_id) {
  return "process set " + std::to_string(process_set_id);
}

}  // namespace

std::vector<std::string> Coordinator::CheckStalls(Clock::time_point now) {
  std::vector<std::string> warnings;
  if (num_pending_ == 0) return warnings;
  const double warning = options_.stall_warning_seconds;
  const double timeout = options_.stall_timeout_seconds;
  const double query = warning > 0 ? warning : kQuerySeconds;
  std::vector<Entry*> failed;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_arrived == 0 || entry->is_complete) continue;
    const auto waited = now - entry->first_arrival;
    if (timeout > 0 && waited >= Seconds(timeout)) {
      failed.push_back(entry.get());
      continue;
    }
    if (warning > 0 && !entry->warned && waited >= Seconds(warning)) {
      entry->warned = true;
      FindCrossing(entry.get());
      const int process_set_id = LeaderOf(*entry)->process_set_id;
      warnings.push_back(
          "'" + name + "'" +
          (process_set_id == 0 ? "" : " (" + SetName(process_set_id) + ")") +
          ": " + WaitingText(*entry) + " for " + SecondsToString(warning) +
          entry->crossing);
    }
    // Again and again: a rank does not always see what it has in flight.
    if (timeout > 0 && waited >= Seconds(query * (entry->num_queries + 1))) {
      Query(entry.get());
    }
  }
  for (Entry* entry : failed) FindCrossing(entry);
  for (Entry* entry : failed) {
    FailIncomplete(entry,
                   Status::Stalled(WaitingText(*entry) + " within " +
                                   SecondsToString(timeout) + entry->crossing));
  }
  return warnings;
}

// Looks for a call that a missing rank waits for, and a waiting rank misses.
void Coordinator::FindCrossing(Entry* entry) {
  if (!entry->crossing.empty()) return;
  for (const auto& [name, other] : entries_) {
    int here = -1;
    int there = -1;
    for (int rank = 0; rank < size_; ++rank) {
      if (HasCome(*entry, rank) == HasCome(*other, rank)) continue;
      (HasCome(*entry, rank) ? here : there) = rank;
    }
    if (here < 0 || there < 0) continue;
    entry->crossing = CrossingText(name, GlobalRank(there));
    if (other->crossing.empty()) {
      other->crossing = CrossingText(entry->name, GlobalRank(here));
    }
    return;
  }
}

void Coordinator::Query(Entry* entry) {
  ++entry->num_queries;
  if (!entry->asked.empty()) return;  // they have not answered the last one
  Response response;
  response.type = Response::Type::kQuery;
  response.items.resize(1);
  response.items[0].name = entry->name;
  response.waiting = WaitingRanks(*entry);
  for (int rank = 0; rank < size_; ++rank) {
    if (joins_.has(rank)) continue;
    entry->asked.push_back(rank);
    response.ranks.push_back(rank);
  }
  early_.push_back(std::move(response));
}

// All answers are waited for: who is found to be elsewhere will not come. But
// where a rank that waits has the name in another set too, the program uses it
// in both, and the others may come after that.
void Coordinator::OnElsewhere(int rank, const RankMessage& message) {
  const auto found = entries_.find(message.name);
  if (found == entries_.end()) return;
  Entry* entry = found->second.get();
  const auto asked = std::find(entry->asked.begin(), entry->asked.end(), rank);
  if (asked == entry->asked.end()) return;
  entry->asked.erase(asked);
  if (HasCome(*entry, rank)) {
    if (message.process_set_id != kNotElsewhere) entry->is_in_two_sets = true;
  } else if (message.process_set_id >= 0) {
    entry->elsewhere.push_back(
        {SetName(message.process_set_id), GlobalRank(rank)});
  }
  if (!entry->asked.empty() || entry->is_complete) return;
  if (std::exchange(entry->is_in_two_sets, false)) entry->elsewhere.clear();
  if (entry->elsewhere.empty()) return;
  std::vector<ValueOnRank> values;
  for (int waiting : WaitingRanks(*entry)) {
    values.push_back({SetName(LeaderOf(*entry)->process_set_id), waiting});
  }
  values.insert(values.end(), entry->elsewhere.begin(), entry->elsewhere.end());
  FailIncomplete(entry, Disagreement("the process set", values));
}

void Coordinator::FailIncomplete(Entry* entry, Status error) {
  Missed missed;
  missed.error.type = Response::Type::kError;
  missed.error.items.resize(1);
  missed.error.items[0].name = entry->name;
  missed.error.error = std::move(error);
  missed.error.is_misplaced = !entry->elsewhere.empty();
  missed.by_rank.resize(static_cast<size_t>(size_));
  early_.push_back(missed.error);
  bool any_missed = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (HasCome(*entry, rank)) {
      early_.back().ranks.push_back(rank);
      continue;
    }
    bool will_come = !joins_.has(rank);
    for (const ValueOnRank& other : entry->elsewhere) {
      will_come = will_come && other.rank != GlobalRank(rank);
    }
    missed.by_rank[static_cast<size_t>(rank)] = will_come;
    any_missed = any_missed || will_come;
  }
  if (any_missed) missed_[entry->name] = std::move(missed);
  Reset(entry);
}

std::vector<int> Coordinator::WaitingRanks(const Entry& entry) const {
  std::vector<int> waiting;
  for (int rank = 0; rank < size_; ++rank) {
    if (HasCome(entry, rank)) waiting.push_back(GlobalRank(rank));
  }
  return waiting;
}

std::string Coordinator::WaitingText(const Entry& entry) const {
  const std::vector<int> waiting = WaitingRanks(entry);
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (HasCome(entry, rank) || joins_.has(rank)) continue;
    missing.push_back(GlobalRank(rank));
  }
  return RanksToString(waiting) +
         (waiting.size() == 1 ? " waits, " : " wait, ") +
         RanksToString(missing) +
         (missing.size() == 1 ? " has not come" : " have not come");
}

}  // namespace hvd
