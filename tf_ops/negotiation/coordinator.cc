#include "tf_ops/negotiation/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tf_ops/negotiation/fusion_plan.h"
#include "tf_ops/negotiation/mismatch.h"
#include "tf_ops/negotiation/rows.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

CoordinatorOptions WithGlobalRanks(CoordinatorOptions options, int size) {
  if (options.global_ranks.empty()) {
    options.global_ranks.resize(static_cast<size_t>(size));
    std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
  }
  return options;
}

}  // namespace

Coordinator::Coordinator(int size, const CoordinatorOptions& options)
    : size_(size),
      options_(WithGlobalRanks(options, size)),
      groups_(static_cast<size_t>(size), options.hosts),
      fusion_threshold_bytes_(options_.fusion_threshold_bytes),
      joins_(&options_.global_ranks),
      stalls_(options_.stalls, &options_.global_ranks, &joins_) {
  if (options_.tuning == nullptr) return;
  tuner_ = std::make_unique<Tuner>(options_.tuning.get());
  fusion_threshold_bytes_ =
      options_.tuning->options().begin.fusion_threshold_bytes;
}

Status Coordinator::OnMessage(int group, const RankMessage& message,
                              Clock::time_point now) {
  HVD_RETURN_IF_ERROR(CheckSpeakers(group, message));
  const Speakers speakers{group, message.ranks, message.last_rank, message.step,
                          now};
  if (message.type != RankMessage::Type::kReady) TakeInReady();
  const std::vector<int>& ranks = RanksOf(speakers);
  switch (message.type) {
    case RankMessage::Type::kRequest:
      OnRequest(speakers, message);
      return Status::Ok();
    case RankMessage::Type::kReady:
      return OnReady(speakers, message.ids);
    case RankMessage::Type::kDuplicate: {
      const auto found = entries_.find(message.name);
      // If it has just been concluded the first call is fine: the rank fails
      // the second one by itself.
      if (found != entries_.end() && found->second->arrivals.num_ranks() > 0) {
        found->second->duplicate_rank = ranks.front();
      }
      return Status::Ok();
    }
    case RankMessage::Type::kForgotten:
      HVD_RETURN_IF_ERROR(CheckIds(group, message.ids));
      for (const IdRun& run : message.ids) {
        for (uint32_t i = 0; i < run.count; ++i) {
          HVD_RETURN_IF_ERROR(OnForgotten(run.first + i, ranks.size()));
        }
      }
      return Status::Ok();
    case RankMessage::Type::kJoin:
      for (int rank : ranks) OnJoin(rank, message.average_over_active);
      return Status::Ok();
    case RankMessage::Type::kElsewhere:
      for (int rank : ranks) OnElsewhere(rank, message, now);
      return Status::Ok();
  }
  return Status::Internal("unknown control message from " + NameOf(group));
}

std::string Coordinator::NameOf(int group) const {
  const std::vector<int>& ranks = groups_.ranks_of(group);
  const std::string first = "rank " + std::to_string(GlobalRank(ranks.front()));
  return ranks.size() == 1 ? first : "the host of " + first;
}

Status Coordinator::CheckSpeakers(int group, const RankMessage& message) const {
  const bool has_last =
      message.last_rank == -1 || groups_.has(group, message.last_rank);
  if (has_last && groups_.HasAll(group, message.ranks)) return Status::Ok();
  return Status::Internal(NameOf(group) +
                          " speaks for ranks that are not its own, or twice "
                          "for one");
}

// No more come than are known.
Status Coordinator::CheckIds(int group, const std::vector<IdRun>& ids) const {
  const uint64_t num_known = by_id_.size() + retired_.size();
  if (NumIds(ids) <= num_known) return Status::Ok();
  return Status::Internal(NameOf(group) + " speaks of " +
                          std::to_string(NumIds(ids)) + " ids, but only " +
                          std::to_string(num_known) + " are known");
}

void Coordinator::OnRequest(const Speakers& speakers,
                            const RankMessage& message) {
  if (message.name == kWholeProgram) {
    const std::vector<int>& ranks = RanksOf(speakers);
    for (int rank : ranks) {
      stalls_.OnFailedProgram(rank, message.params.failure, speakers.now);
    }
    Failure failure;
    failure.name = message.name;
    failure.error = message.params.failure;
    failure.ranks.assign(ranks.begin(), ranks.end());
    early_.push_back(std::move(failure));
    return;
  }
  Speakers in_time = speakers;
  if (!AnswerLate(message.name, &in_time)) return;
  Entry* entry = FindOrAdd(message.name);
  if (entry->is_complete) {  // so this rank has come before
    entry->duplicate_rank = RanksOf(in_time).front();
    return;
  }
  // Equal ones are kept once: that is quick to compare again.
  const bool is_like_first =
      entry->leader != nullptr && *entry->leader == message.params;
  const Params params =
      is_like_first ? entry->leader
                    : std::make_shared<const RequestParams>(message.params);
  if (params->failure.ok()) {
    Arrive(entry, in_time, KnownParams(params), /*by_id=*/false);
    return;
  }
  Add(entry, in_time, KnownParams(params), /*by_id=*/false);
  const int rank = RanksOf(in_time).front();
  Apply(stalls_.Refuse(*entry, rank, params->failure, in_time.now));
}

// Mostly all groups are ready for the same ids: then each is looked up once for
// all of them, which is quicker by far than each time.
Status Coordinator::OnReady(const Speakers& speakers,
                            const std::vector<IdRun>& ids) {
  for (size_t i = 0; i < num_ready_; ++i) {
    if (ready_[i].ids != ids) continue;
    ready_[i].all.push_back(speakers);
    return Status::Ok();
  }
  HVD_RETURN_IF_ERROR(CheckIds(speakers.group, ids));
  for (const IdRun& run : ids) {
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t id = run.first + i;
      if (by_id_.count(id) > 0 || retired_.count(id) > 0) continue;
      return Status::Internal(NameOf(speakers.group) +
                              " is ready for unknown id " + std::to_string(id));
    }
  }
  if (num_ready_ == ready_.size()) ready_.emplace_back();
  Ready& ready = ready_[num_ready_++];
  ready.ids = ids;
  ready.all.push_back(speakers);
  return Status::Ok();
}

void Coordinator::TakeInReady() {
  for (size_t k = 0; k < num_ready_; ++k) {
    for (const IdRun& run : ready_[k].ids) {
      for (uint32_t i = 0; i < run.count; ++i) {
        TakeIn(run.first + i, ready_[k].all);
      }
    }
    ready_[k].all.clear();
  }
  num_ready_ = 0;
}

void Coordinator::TakeIn(uint32_t id, const std::vector<Speakers>& all) {
  const auto known = by_id_.find(id);
  const bool is_known = known != by_id_.end();
  const auto retired = is_known ? retired_.end() : retired_.find(id);
  const std::string& name =
      is_known ? known->second->name : retired->second.name;
  const KnownParams& params =
      is_known ? known->second->cached : retired->second.cached;
  Speakers in_time;
  for (const Speakers& speakers : all) {
    const Speakers* who = &speakers;
    if (stalls_.expects_late()) {
      in_time = speakers;
      if (!AnswerLate(name, &in_time)) continue;
      who = &in_time;
    }
    Arrive(is_known ? known->second : FindOrAdd(name), *who, params, is_known);
  }
}

Status Coordinator::OnForgotten(uint32_t id, size_t num_ranks) {
  const auto found = retired_.find(id);
  if (found == retired_.end()) {
    return Status::Internal("id " + std::to_string(id) +
                            " was forgotten too often");
  }
  int& num_forgotten = found->second.num_forgotten;
  num_forgotten += static_cast<int>(num_ranks);
  if (num_forgotten >= size_) retired_.erase(found);
  return Status::Ok();
}

void Coordinator::OnJoin(int rank, bool average_over_active) {
  stalls_.OnJoin(rank);
  if (!joins_.Join(rank, average_over_active)) return;
  std::vector<Entry*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->arrivals.num_ranks() > 0) pending.push_back(entry.get());
  }
  std::sort(pending.begin(), pending.end(), [](const Entry* a, const Entry* b) {
    return a->first_arrival < b->first_arrival;
  });
  for (Entry* entry : pending) CompleteIfAllCame(entry);
}

void Coordinator::OnElsewhere(int rank, const RankMessage& message,
                              Clock::time_point now) {
  const auto found = entries_.find(message.name);
  if (found == entries_.end()) return;
  Apply(stalls_.OnElsewhere(*found->second, rank, message.process_set_id, now));
}

bool Coordinator::AnswerLate(const std::string& name, Speakers* speakers) {
  if (!stalls_.expects_late()) return true;
  const std::vector<int>& ranks = RanksOf(*speakers);
  std::vector<int> in_time;
  for (int rank : ranks) {
    Failure failure;
    if (stalls_.AnswerLate(name, rank, speakers->now, &failure)) {
      early_.push_back(std::move(failure));
    } else {
      in_time.push_back(rank);
    }
  }
  if (in_time.empty()) return false;
  if (in_time.size() < ranks.size()) speakers->some = std::move(in_time);
  return true;
}

std::vector<std::string> Coordinator::CheckStalls(Clock::time_point now) {
  TakeInReady();
  if (num_pending_ == 0) return {};
  std::vector<const Call*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->arrivals.num_ranks() > 0) pending.push_back(entry.get());
  }
  StallMonitor::Findings findings = stalls_.Check(pending, now);
  std::vector<std::string> warnings = std::move(findings.warnings);
  Apply(std::move(findings));
  return warnings;
}

void Coordinator::Apply(StallMonitor::Findings findings) {
  for (Response& response : findings.responses) {
    early_.push_back(std::move(response));
  }
  for (const std::string& name : findings.given_up) {
    Reset(entries_.at(name).get());
  }
}

Coordinator::Entry* Coordinator::FindOrAdd(const std::string& name) {
  std::unique_ptr<Entry>& slot = entries_[name];
  if (slot == nullptr) {
    slot = std::make_unique<Entry>(&groups_);
    slot->name = name;
  }
  return slot.get();
}

void Coordinator::Arrive(Entry* entry, const Speakers& speakers,
                         const KnownParams& params, bool by_id) {
  Add(entry, speakers, params, by_id);
  if (entry->arrivals.num_ranks() + joins_.num_joined() >= size_) {
    CompleteIfAllCame(entry);
  }
}

void Coordinator::Add(Entry* entry, const Speakers& speakers,
                      const KnownParams& params, bool by_id) {
  const std::vector<int>& ranks = RanksOf(speakers);
  Arrivals& arrivals = entry->arrivals;
  if (arrivals.num_ranks() == 0) {
    entry->first_arrival = speakers.now;
    entry->leader = params.of(ranks.front());
    ++num_pending_;
  }
  entry->steps.Add(speakers.step, ranks);
  const bool is_whole = speakers.some.empty();
  if (!by_id || !is_whole || !arrivals.AddKnown(speakers.group)) {
    for (int rank : ranks) arrivals.Add(rank, params.of(rank));
  }
  entry->last_arrival = speakers.now;
  entry->last_rank = speakers.last_rank < 0 ? ranks.back() : speakers.last_rank;
  entry->all_cached = entry->all_cached && by_id;
}

void Coordinator::CompleteIfAllCame(Entry* entry) {
  if (entry->is_complete) return;
  if (entry->arrivals.num_ranks() < size_) {
    for (int rank = 0; rank < size_; ++rank) {
      if (!entry->HasCome(rank) && !joins_.has(rank)) return;
    }
    entry->average_over_active = joins_.average_over_active();
  }
  entry->is_complete = true;
  complete_.push_back(entry);
}

void Coordinator::Reset(Entry* entry) {
  --num_pending_;
  entry->arrivals.Clear();
  entry->leader = nullptr;
  entry->all_cached = true;
  entry->is_complete = false;
  entry->duplicate_rank = -1;
  entry->steps.Clear();
  stalls_.Forget(entry->name);
  if (entry->cache_id == 0) entries_.erase(std::string(entry->name));
}

std::vector<Response> Coordinator::TakeResponses() {
  TakeInReady();
  std::vector<Response> responses = std::move(early_);
  early_.clear();
  FusionPlan plan(fusion_threshold_bytes_);
  for (Entry* entry : complete_) {
    ResponseItem item;
    const Params params = entry->leader;
    const int32_t divisor = DivisorOf(*entry);
    item.last_rank = GlobalRank(entry->last_rank);
    item.late_by = entry->last_arrival - entry->first_arrival;
    Status status = Conclude(entry, &item);
    if (status.ok()) {
      if (stalls_.remembers()) stalls_.OnMeeting(*entry);
      if (tuner_ != nullptr && params->kind == CollectiveKind::kAllreduce) {
        tuner_->Note(entry->name, *params, entry->last_arrival);
      }
      plan.Add(std::move(item), params, divisor);
    } else {
      Failure failure;
      failure.name = entry->name;
      failure.error = std::move(status);
      failure.last_rank = item.last_rank;
      failure.late_by = item.late_by;
      responses.push_back(std::move(failure));
    }
    Reset(entry);
  }
  complete_.clear();
  EvictIfFull();

  for (Execution& execution : plan.Take()) {
    responses.push_back(std::move(execution));
  }
  // After what runs above, in which ranks that have joined take part.
  joins_.TakeResponses(&responses);
  if (tuner_ != nullptr) Tune(&responses);
  // Last: what runs above may still go by an id that is evicted here.
  if (!evictions_.empty()) {
    responses.push_back(Eviction{std::move(evictions_)});
    evictions_.clear();
  }
  return responses;
}

void Coordinator::Tune(std::vector<Response>* responses) {
  const std::optional<Tunables> change = tuner_->TakeChange();
  if (!change.has_value()) return;
  fusion_threshold_bytes_ = change->fusion_threshold_bytes;
  responses->push_back(*change);
}

Status Coordinator::Conclude(Entry* entry, ResponseItem* item) {
  ParamsByRank by_rank;  // unless the cache has them all
  if (!entry->all_cached) by_rank = entry->arrivals.ByRank(entry->cached);
  HVD_RETURN_IF_ERROR(Check(*entry, by_rank));
  if (!entry->all_cached) {
    // Ranks that have joined go by the request of another one: an allreduce is
    // the same on all ranks.
    for (Params& params : by_rank) {
      if (params != nullptr) continue;
      params = entry->leader;
      item->params = entry->leader;
    }
    HVD_RETURN_IF_ERROR(ValidateParams(by_rank, options_.global_ranks));
  }
  entry->last_use = ++num_uses_;
  if (entry->all_cached) {
    item->cached_id = entry->cache_id;
    return Status::Ok();
  }
  item->name = entry->name;
  item->kind = entry->leader->kind;
  item->rows = RowsOf(by_rank);
  Remember(entry, std::move(by_rank));
  item->new_id = entry->cache_id;
  return Status::Ok();
}

Status Coordinator::Check(const Entry& entry,
                          const ParamsByRank& by_rank) const {
  if (entry.duplicate_rank >= 0) {
    return Status::InvalidArgument(
        "submitted twice by rank " +
        std::to_string(GlobalRank(entry.duplicate_rank)) +
        " before its first call had finished; a name may be in flight once");
  }
  if (!entry.all_cached) {
    HVD_RETURN_IF_ERROR(CheckAgreement(by_rank, options_.global_ranks));
  }
  if (!entry.steps.agree() && ReducesGradients(entry.name)) {
    return UnequalSteps(StepsOf(entry, options_.global_ranks));
  }
  return entry.arrivals.num_ranks() == size_ ? Status::Ok()
                                             : CheckWithoutJoined(entry);
}

Status Coordinator::CheckWithoutJoined(const Entry& entry) const {
  const CollectiveKind kind = entry.leader->kind;
  if (kind == CollectiveKind::kAllreduce) return Status::Ok();
  std::vector<int> joined, waiting;
  for (int rank = 0; rank < size_; ++rank) {
    (entry.HasCome(rank) ? waiting : joined).push_back(GlobalRank(rank));
  }
  return Status::Mismatch(
      RanksToString(joined) + (joined.size() == 1 ? " has" : " have") +
      " joined; from then on only allreduces can run. Received: " +
      CollectiveKindName(kind) + " on " + RanksToString(waiting));
}

// See Execution.
int32_t Coordinator::DivisorOf(const Entry& entry) const {
  const int num_arrived = entry.arrivals.num_ranks();
  if (num_arrived == size_) return 0;
  return entry.average_over_active ? num_arrived : size_;
}

void Coordinator::Remember(Entry* entry, ParamsByRank by_rank) {
  if (entry->cache_id != 0) Retire(entry);
  if (options_.cache_capacity <= 0) return;
  do {
    entry->cache_id = next_id_++;  // it wraps some day
  } while (entry->cache_id == 0 || by_id_.count(entry->cache_id) > 0 ||
           retired_.count(entry->cache_id) > 0);
  entry->cached = KnownParams(std::move(by_rank));
  by_id_[entry->cache_id] = entry;
}

void Coordinator::Retire(Entry* entry) {
  Retired& retired = retired_[entry->cache_id];
  retired.name = entry->name;
  retired.cached = std::exchange(entry->cached, KnownParams());
  AppendId(entry->cache_id, &evictions_);
  by_id_.erase(entry->cache_id);
  entry->cache_id = 0;
}

void Coordinator::EvictIfFull() {
  const size_t capacity = static_cast<size_t>(options_.cache_capacity);
  if (by_id_.size() <= capacity) return;
  // A good part at once, so that the search is rare.
  const size_t surplus = by_id_.size() - capacity + capacity / 8;
  std::vector<Entry*> idle;
  for (const auto& [id, entry] : by_id_) {
    if (entry->arrivals.num_ranks() == 0) idle.push_back(entry);
  }
  std::sort(idle.begin(), idle.end(), [](const Entry* a, const Entry* b) {
    return a->last_use < b->last_use;
  });
  if (idle.size() > surplus) idle.resize(surplus);
  for (Entry* entry : idle) {
    Retire(entry);
    entries_.erase(std::string(entry->name));
  }
}

}  // namespace hvd
