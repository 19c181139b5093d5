#include "tf_ops/negotiation/request_table.h"

#include <iterator>
#include <utility>

namespace hvd {
namespace {

void AppendReady(uint32_t id, TrainingStep step,
                 std::vector<RankMessage>* messages) {
  if (messages->empty() || messages->back().type != RankMessage::Type::kReady ||
      messages->back().step != step) {
    messages->emplace_back();
    messages->back().type = RankMessage::Type::kReady;
    messages->back().step = step;
  }
  AppendId(id, &messages->back().ids);
}

}  // namespace

RequestTable::Admission RequestTable::Admit(
    Request request, Clock::time_point now,
    std::vector<RankMessage>* messages) {
  NamedRequest& named = names_[request.name];
  if (named.pending != nullptr) {
    messages->emplace_back();
    messages->back().type = RankMessage::Type::kDuplicate;
    messages->back().name = request.name;
    named.pending->duplicates.push_back(std::move(request));
    return {&named.pending->duplicates.back(), Admission::kDuplicate};
  }
  named.pending = std::make_unique<PendingRequest>();
  ++num_pending_;
  PendingRequest& pending = *named.pending;
  pending.request = std::move(request);
  pending.admitted = now;
  if (named.known != nullptr &&
      HasParams(pending.request, *named.known->params)) {
    pending.params = named.known->params;
    AppendReady(named.id, pending.request.step, messages);
    return {&pending.request, Admission::kKnown};
  }
  pending.params = std::make_shared<RequestParams>(ParamsOf(pending.request));
  messages->emplace_back();
  messages->back().type = RankMessage::Type::kRequest;
  messages->back().step = pending.request.step;
  messages->back().name = pending.request.name;
  messages->back().params = *pending.params;
  return {&pending.request, Admission::kNew};
}

void RequestTable::AdmitJoin(Request request) {
  join_ = std::make_unique<PendingRequest>();
  join_->request = std::move(request);
  join_->admitted = Clock::now();
}

std::unique_ptr<PendingRequest> RequestTable::TakeJoin() {
  return std::move(join_);
}

std::unique_ptr<PendingRequest> RequestTable::TakePending(NamedRequest* named) {
  if (named->pending != nullptr) --num_pending_;
  return std::move(named->pending);
}

std::unique_ptr<PendingRequest> RequestTable::Take(const std::string& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return nullptr;
  std::unique_ptr<PendingRequest> taken = TakePending(&found->second);
  DropIfEmpty(found);
  return taken;
}

std::unique_ptr<PendingRequest> RequestTable::Take(const KnownRequest& known) {
  return TakePending(known.named);
}

void RequestTable::DropIfEmpty(Names::iterator named) {
  if (named->second.pending == nullptr && named->second.num_ids == 0) {
    names_.erase(named);
  }
}

std::vector<std::unique_ptr<PendingRequest>> RequestTable::TakeAll() {
  std::vector<std::unique_ptr<PendingRequest>> all;
  for (auto named = names_.begin(); named != names_.end();) {
    const auto next = std::next(named);
    if (named->second.pending != nullptr) {
      all.push_back(TakePending(&named->second));
      DropIfEmpty(named);
    }
    named = next;
  }
  if (join_ != nullptr) all.push_back(std::move(join_));
  return all;
}

const PendingRequest* RequestTable::Peek(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : found->second.pending.get();
}

const PendingRequest* RequestTable::Oldest() const {
  const PendingRequest* oldest = nullptr;
  for (const auto& [name, named] : names_) {
    const PendingRequest* pending = named.pending.get();
    if (pending == nullptr) continue;
    if (oldest == nullptr || pending->admitted < oldest->admitted) {
      oldest = pending;
    }
  }
  return oldest;
}

void RequestTable::Remember(uint32_t id, const ResponseItem& item,
                            std::shared_ptr<const RequestParams> params) {
  NamedRequest& named = names_[item.name];
  KnownRequest& known = known_[id];
  known.name = item.name;
  known.named = &named;
  known.params = std::move(params);
  known.rows = item.rows;
  known.host_rows = item.host_rows;
  named.id = id;
  named.known = &known;
  ++named.num_ids;
}

void RequestTable::Forget(uint32_t id) {
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  NamedRequest* const named = found->second.named;
  if (named->id == id) {
    named->id = 0;
    named->known = nullptr;
  }
  --named->num_ids;
  DropIfEmpty(names_.find(found->second.name));
  known_.erase(found);
}

const KnownRequest* RequestTable::Find(uint32_t id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : &found->second;
}

}  // namespace hvd
