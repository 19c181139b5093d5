#include "tf_ops/negotiation/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tf_ops/negotiation/fusion_plan.h"
#include "tf_ops/negotiation/mismatch.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

// See ResponseItem.
std::vector<std::vector<int64_t>> RowsOf(const ParamsByRank& by_rank) {
  std::vector<std::vector<int64_t>> rows;
  if (by_rank[0]->kind == CollectiveKind::kAllgather) {
    rows.resize(by_rank[0]->tensors.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& params : by_rank) {
        rows[i].push_back(params->tensors[i].shape[0]);
      }
    }
  } else if (by_rank[0]->kind == CollectiveKind::kAlltoall) {
    const int64_t size = static_cast<int64_t>(by_rank.size());
    for (const auto& params : by_rank) {
      rows.push_back(params->splits);
      if (!rows.back().empty()) continue;
      rows.back().assign(by_rank.size(), params->tensors[0].shape[0] / size);
    }
  }
  return rows;
}

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
      joins_(&options_.global_ranks),
      stalls_(options_.stalls, &options_.global_ranks, &joins_) {}

Status Coordinator::OnMessage(int rank, const RankMessage& message,
                              Clock::time_point now) {
  switch (message.type) {
    case RankMessage::Type::kRequest:
      if (AnswerLate(message.name, rank)) return Status::Ok();
      Arrive(FindOrAdd(message.name), rank,
             std::make_shared<const RequestParams>(message.params),
             /*by_id=*/false, now);
      return Status::Ok();
    case RankMessage::Type::kReady:
      HVD_RETURN_IF_ERROR(CheckIds(rank, message.ids));
      for (const IdRun& run : message.ids) {
        for (uint32_t i = 0; i < run.count; ++i) {
          HVD_RETURN_IF_ERROR(OnId(rank, run.first + i, now));
        }
      }
      return Status::Ok();
    case RankMessage::Type::kDuplicate: {
      const auto found = entries_.find(message.name);
      // If it has just been concluded the first call is fine: the rank fails
      // the second one by itself.
      if (found != entries_.end() && found->second->num_arrived > 0) {
        found->second->duplicate_rank = rank;
      }
      return Status::Ok();
    }
    case RankMessage::Type::kForgotten:
      HVD_RETURN_IF_ERROR(CheckIds(rank, message.ids));
      for (const IdRun& run : message.ids) {
        for (uint32_t i = 0; i < run.count; ++i) {
          HVD_RETURN_IF_ERROR(OnForgotten(run.first + i));
        }
      }
      return Status::Ok();
    case RankMessage::Type::kJoin:
      OnJoin(rank, message.average_over_active);
      return Status::Ok();
    case RankMessage::Type::kElsewhere:
      OnElsewhere(rank, message);
      return Status::Ok();
  }
  return Status::Internal("unknown control message from rank " +
                          std::to_string(rank));
}

// Before any of them is acted on: each is known, and comes once.
Status Coordinator::CheckIds(int rank, const std::vector<IdRun>& ids) const {
  const uint64_t num_known = by_id_.size() + retired_.size();
  if (NumIds(ids) <= num_known) return Status::Ok();
  return Status::Internal("rank " + std::to_string(rank) + " speaks of " +
                          std::to_string(NumIds(ids)) + " ids, but only " +
                          std::to_string(num_known) + " are known");
}

Status Coordinator::OnId(int rank, uint32_t id, Clock::time_point now) {
  const size_t index = static_cast<size_t>(rank);
  const auto known = by_id_.find(id);
  if (known != by_id_.end()) {
    Entry* entry = known->second;
    if (AnswerLate(entry->name, rank)) return Status::Ok();
    Arrive(entry, rank, entry->cached[index], /*by_id=*/true, now);
    return Status::Ok();
  }
  const auto retired = retired_.find(id);
  if (retired == retired_.end()) {
    return Status::Internal("rank " + std::to_string(rank) +
                            " is ready for unknown id " + std::to_string(id));
  }
  if (AnswerLate(retired->second.name, rank)) return Status::Ok();
  Arrive(FindOrAdd(retired->second.name), rank, retired->second.cached[index],
         /*by_id=*/false, now);
  return Status::Ok();
}

Status Coordinator::OnForgotten(uint32_t id) {
  const auto found = retired_.find(id);
  if (found == retired_.end()) {
    return Status::Internal("id " + std::to_string(id) +
                            " was forgotten too often");
  }
  if (++found->second.num_forgotten == size_) retired_.erase(found);
  return Status::Ok();
}

void Coordinator::OnJoin(int rank, bool average_over_active) {
  stalls_.OnJoin(rank);
  if (!joins_.Join(rank, average_over_active)) return;
  std::vector<Entry*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_arrived > 0) pending.push_back(entry.get());
  }
  std::sort(pending.begin(), pending.end(), [](const Entry* a, const Entry* b) {
    return a->first_arrival < b->first_arrival;
  });
  for (Entry* entry : pending) CompleteIfAllCame(entry);
}

void Coordinator::OnElsewhere(int rank, const RankMessage& message) {
  const auto found = entries_.find(message.name);
  if (found == entries_.end()) return;
  Apply(stalls_.OnElsewhere(*found->second, rank, message.process_set_id));
}

bool Coordinator::AnswerLate(const std::string& name, int rank) {
  Response error;
  if (!stalls_.AnswerLate(name, rank, &error)) return false;
  early_.push_back(std::move(error));
  return true;
}

std::vector<std::string> Coordinator::CheckStalls(Clock::time_point now) {
  if (num_pending_ == 0) return {};
  std::vector<const Call*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_arrived > 0) pending.push_back(entry.get());
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
    slot = std::make_unique<Entry>();
    slot->name = name;
    slot->arrived.resize(static_cast<size_t>(size_));
  }
  return slot.get();
}

void Coordinator::Arrive(Entry* entry, int rank, Params params, bool by_id,
                         Clock::time_point now) {
  if (entry->num_arrived == 0) {
    entry->first_arrival = now;
    ++num_pending_;
  }
  Params& slot = entry->arrived[static_cast<size_t>(rank)];
  if (slot == nullptr) ++entry->num_arrived;
  slot = std::move(params);
  entry->last_arrival = now;
  entry->last_rank = rank;
  entry->all_cached = entry->all_cached && by_id;
  if (entry->num_arrived == size_ || joins_.any()) CompleteIfAllCame(entry);
}

void Coordinator::CompleteIfAllCame(Entry* entry) {
  if (entry->is_complete) return;
  if (entry->num_arrived < size_) {
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
  std::fill(entry->arrived.begin(), entry->arrived.end(), nullptr);
  entry->num_arrived = 0;
  entry->all_cached = true;
  entry->is_complete = false;
  entry->duplicate_rank = -1;
  stalls_.Forget(entry->name);
  if (entry->cache_id == 0) entries_.erase(std::string(entry->name));
}

std::vector<Response> Coordinator::TakeResponses() {
  std::vector<Response> errors = std::move(early_);
  early_.clear();
  FusionPlan plan(options_.fusion_threshold_bytes);
  for (Entry* entry : complete_) {
    ResponseItem item;
    Response error;
    const Params params = entry->Leader();
    const int32_t divisor = DivisorOf(*entry);
    item.last_rank = GlobalRank(entry->last_rank);
    item.late_by = entry->last_arrival - entry->first_arrival;
    if (Conclude(entry, &item, &error)) {
      plan.Add(std::move(item), params, divisor);
    } else {
      error.items[0].last_rank = item.last_rank;
      error.items[0].late_by = item.late_by;
      errors.push_back(std::move(error));
    }
    Reset(entry);
  }
  complete_.clear();
  EvictIfFull();

  std::vector<Response> responses = std::move(errors);
  for (Response& response : plan.Take()) {
    responses.push_back(std::move(response));
  }
  // After what runs above, in which ranks that have joined take part.
  joins_.TakeResponses(&responses);
  // Last: what runs above may still go by an id that is evicted here.
  if (!evictions_.empty()) {
    responses.emplace_back();
    responses.back().type = Response::Type::kEvict;
    responses.back().ids = std::move(evictions_);
    evictions_.clear();
  }
  return responses;
}

bool Coordinator::Conclude(Entry* entry, ResponseItem* item, Response* error) {
  // Ranks that have joined go by the request of another one: an allreduce is
  // the same on all ranks.
  const Params leader = entry->Leader();
  Status status = Check(*entry);
  if (status.ok() && !entry->all_cached) {
    for (Params& params : entry->arrived) {
      if (params != nullptr) continue;
      params = leader;
      item->params = leader;
    }
    status = ValidateParams(entry->arrived, options_.global_ranks);
  }
  if (!status.ok()) {
    error->type = Response::Type::kError;
    error->items.resize(1);
    error->items[0].name = entry->name;
    error->error = std::move(status);
    return false;
  }
  entry->last_use = ++num_uses_;
  if (entry->all_cached) {
    item->cached_id = entry->cache_id;
    return true;
  }
  item->name = entry->name;
  item->rows = RowsOf(entry->arrived);
  Remember(entry);
  item->new_id = entry->cache_id;
  return true;
}

Status Coordinator::Check(const Entry& entry) const {
  if (entry.duplicate_rank >= 0) {
    return Status::InvalidArgument(
        "submitted twice by rank " +
        std::to_string(GlobalRank(entry.duplicate_rank)) +
        " before its first call had finished; a name may be in flight once");
  }
  if (!entry.all_cached) {
    HVD_RETURN_IF_ERROR(FailureOf(entry));
    HVD_RETURN_IF_ERROR(CheckAgreement(entry.arrived, options_.global_ranks));
  }
  return entry.num_arrived == size_ ? Status::Ok() : CheckWithoutJoined(entry);
}

// Of the first rank that cannot take part.
Status Coordinator::FailureOf(const Entry& entry) const {
  for (int rank = 0; rank < size_; ++rank) {
    const Params& params = entry.arrived[static_cast<size_t>(rank)];
    if (params == nullptr || params->failure.ok()) continue;
    return params->failure.WithContext(
        "rank " + std::to_string(GlobalRank(rank)) + " cannot take part");
  }
  return Status::Ok();
}

Status Coordinator::CheckWithoutJoined(const Entry& entry) const {
  const CollectiveKind kind = entry.Leader()->kind;
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

// See Response.
int32_t Coordinator::DivisorOf(const Entry& entry) const {
  if (entry.num_arrived == size_) return 0;
  return entry.average_over_active ? entry.num_arrived : size_;
}

void Coordinator::Remember(Entry* entry) {
  if (entry->cache_id != 0) Retire(entry);
  if (options_.cache_capacity <= 0) return;
  do {
    entry->cache_id = next_id_++;  // it wraps some day
  } while (entry->cache_id == 0 || by_id_.count(entry->cache_id) > 0 ||
           retired_.count(entry->cache_id) > 0);
  entry->cached = entry->arrived;
  by_id_[entry->cache_id] = entry;
}

void Coordinator::Retire(Entry* entry) {
  Retired& retired = retired_[entry->cache_id];
  retired.name = entry->name;
  retired.cached = std::move(entry->cached);
  AppendId(entry->cache_id, &evictions_);
  by_id_.erase(entry->cache_id);
  entry->cache_id = 0;
  entry->cached.clear();
}

void Coordinator::EvictIfFull() {
  const size_t capacity = static_cast<size_t>(options_.cache_capacity);
  if (by_id_.size() <= capacity) return;
  // A good part at once, so that the search is rare.
  const size_t surplus = by_id_.size() - capacity + capacity / 8;
  std::vector<Entry*> idle;
  for (const auto& [id, entry] : by_id_) {
    if (entry->num_arrived == 0) idle.push_back(entry);
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
