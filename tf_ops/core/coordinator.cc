#include "tf_ops/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "tf_ops/core/fusion_plan.h"
#include "tf_ops/core/mismatch.h"
#include "tf_ops/core/validate.h"

namespace hvd {
namespace {

std::chrono::duration<double> Seconds(double seconds) {
  return std::chrono::duration<double>(seconds);
}

std::string SecondsToString(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

// Allgather: the first dimensions, [tensor][rank].
std::vector<std::vector<int64_t>> FirstDims(
    const std::vector<std::shared_ptr<const RequestParams>>& by_rank) {
  std::vector<std::vector<int64_t>> dims(by_rank[0]->tensors.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    for (const auto& params : by_rank) {
      dims[i].push_back(params->tensors[i].shape[0]);
    }
  }
  return dims;
}

}  // namespace

Coordinator::Coordinator(int size, const CoordinatorOptions& options)
    : size_(size), options_(options) {}

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
      for (const IdRun& run : message.ids) {
        for (uint32_t i = 0; i < run.count; ++i) {
          HVD_RETURN_IF_ERROR(OnForgotten(run.first + i));
        }
      }
      return Status::Ok();
  }
  return Status::Internal("unknown control message from rank " +
                          std::to_string(rank));
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

bool Coordinator::AnswerLate(const std::string& name, int rank) {
  const auto found = missed_.find(name);
  if (found == missed_.end()) return false;
  std::vector<bool>& by_rank = found->second.by_rank;
  if (!by_rank[static_cast<size_t>(rank)]) return false;
  by_rank[static_cast<size_t>(rank)] = false;
  early_.push_back(found->second.error);
  early_.back().ranks = {rank};
  if (std::find(by_rank.begin(), by_rank.end(), true) == by_rank.end()) {
    missed_.erase(found);
  }
  return true;
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
  entry->all_cached = entry->all_cached && by_id;
  if (entry->num_arrived == size_) complete_.push_back(entry);
}

void Coordinator::Reset(Entry* entry) {
  --num_pending_;
  std::fill(entry->arrived.begin(), entry->arrived.end(), nullptr);
  entry->num_arrived = 0;
  entry->all_cached = true;
  entry->warned = false;
  entry->duplicate_rank = -1;
  if (entry->cache_id == 0) entries_.erase(std::string(entry->name));
}

std::vector<Response> Coordinator::TakeResponses() {
  std::vector<Response> errors = std::move(early_);
  early_.clear();
  FusionPlan plan(options_.fusion_threshold_bytes);
  for (Entry* entry : complete_) {
    ResponseItem item;
    Response error;
    const Params params = entry->arrived[0];
    if (Conclude(entry, &item, &error)) {
      plan.Add(std::move(item), *params);
    } else {
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
  Status status;
  if (entry->duplicate_rank >= 0) {
    status = Status::InvalidArgument(
        "submitted twice by rank " + std::to_string(entry->duplicate_rank) +
        " before its first call had finished; a name may be in flight once");
  } else if (!entry->all_cached) {
    status = CheckAgreement(entry->arrived);
    if (status.ok()) status = ValidateParams(*entry->arrived[0], size_);
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
  if (entry->arrived[0]->kind == CollectiveKind::kAllgather) {
    item->first_dims = FirstDims(entry->arrived);
  }
  Remember(entry);
  item->new_id = entry->cache_id;
  return true;
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

std::vector<std::string> Coordinator::CheckStalls(Clock::time_point now) {
  std::vector<std::string> warnings;
  if (num_pending_ == 0) return warnings;
  const double warning = options_.stall_warning_seconds;
  const double timeout = options_.stall_timeout_seconds;
  std::vector<Entry*> failed;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_arrived == 0 || entry->num_arrived == size_) continue;
    const auto waited = now - entry->first_arrival;
    if (timeout > 0 && waited >= Seconds(timeout)) {
      failed.push_back(entry.get());
    } else if (warning > 0 && !entry->warned && waited >= Seconds(warning)) {
      entry->warned = true;
      warnings.push_back("'" + name + "': " + WaitingText(*entry) + " for " +
                         SecondsToString(warning));
    }
  }
  for (Entry* entry : failed) {
    Missed& missed = missed_[entry->name];
    missed.error = StallError(*entry);
    missed.by_rank.resize(static_cast<size_t>(size_));
    early_.push_back(missed.error);
    for (int rank = 0; rank < size_; ++rank) {
      const bool came = entry->arrived[static_cast<size_t>(rank)] != nullptr;
      if (came) early_.back().ranks.push_back(rank);
      if (!came) missed.by_rank[static_cast<size_t>(rank)] = true;
    }
    Reset(entry);
  }
  return warnings;
}

Response Coordinator::StallError(const Entry& entry) const {
  Response response;
  response.type = Response::Type::kError;
  response.items.resize(1);
  response.items[0].name = entry.name;
  response.error =
      Status::Stalled(WaitingText(entry) + " within " +
                      SecondsToString(options_.stall_timeout_seconds));
  return response;
}

std::string Coordinator::WaitingText(const Entry& entry) const {
  std::vector<int> waiting;
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const Params& arrived = entry.arrived[static_cast<size_t>(rank)];
    (arrived != nullptr ? waiting : missing).push_back(rank);
  }
  return RanksToString(waiting) +
         (waiting.size() == 1 ? " waits, " : " wait, ") +
         RanksToString(missing) +
         (missing.size() == 1 ? " has not come" : " have not come");
}

}  // namespace hvd
