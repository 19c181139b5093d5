#include "tf_ops/core/request_table.h"

#include <algorithm>
#include <utility>

namespace hvd {

void RequestTable::Admit(Request request, std::vector<IdRun>* ready,
                         std::vector<RankMessage>* messages) {
  const std::string name = request.name;
  std::unique_ptr<PendingRequest>& slot = pending_[name];
  if (slot != nullptr) {
    messages->emplace_back();
    messages->back().type = RankMessage::Type::kDuplicate;
    messages->back().name = name;
    slot->duplicates.push_back(std::move(request));
    return;
  }
  slot = std::make_unique<PendingRequest>();
  slot->request = std::move(request);
  slot->submitted = Clock::now();
  const auto id = id_of_name_.find(name);
  if (id != id_of_name_.end()) {
    const KnownRequest& known = known_.at(id->second);
    if (HasParams(slot->request, *known.params)) {
      slot->params = known.params;
      ++num_hits_;
      AppendId(id->second, ready);
      return;
    }
  }
  slot->params = std::make_shared<RequestParams>(ParamsOf(slot->request));
  ++num_misses_;
  messages->emplace_back();
  messages->back().type = RankMessage::Type::kRequest;
  messages->back().name = name;
  messages->back().params = *slot->params;
}

void RequestTable::AdmitJoin(Request request) {
  join_ = std::make_unique<PendingRequest>();
  join_->request = std::move(request);
  join_->submitted = Clock::now();
}

std::unique_ptr<PendingRequest> RequestTable::TakeJoin() {
  return std::move(join_);
}

std::unique_ptr<PendingRequest> RequestTable::Take(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return nullptr;
  std::unique_ptr<PendingRequest> taken = std::move(found->second);
  pending_.erase(found);
  return taken;
}

std::vector<std::unique_ptr<PendingRequest>> RequestTable::TakeAll() {
  std::vector<std::unique_ptr<PendingRequest>> all;
  for (auto& [name, pending] : pending_) all.push_back(std::move(pending));
  pending_.clear();
  if (join_ != nullptr) all.push_back(std::move(join_));
  return all;
}

const PendingRequest* RequestTable::Peek(const std::string& name) const {
  const auto found = pending_.find(name);
  return found == pending_.end() ? nullptr : found->second.get();
}

const PendingRequest* RequestTable::Oldest() const {
  const auto oldest = std::min_element(
      pending_.begin(), pending_.end(), [](const auto& a, const auto& b) {
        return a.second->submitted < b.second->submitted;
      });
  return oldest == pending_.end() ? nullptr : oldest->second.get();
}

void RequestTable::Remember(uint32_t id, const ResponseItem& item,
                            std::shared_ptr<const RequestParams> params) {
  KnownRequest& known = known_[id];
  known.name = item.name;
  known.params = std::move(params);
  known.rows = item.rows;
  id_of_name_[item.name] = id;
}

void RequestTable::Forget(uint32_t id) {
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  const auto name = id_of_name_.find(found->second.name);
  if (name != id_of_name_.end() && name->second == id) {
    id_of_name_.erase(name);
  }
  known_.erase(found);
}

const KnownRequest* RequestTable::Find(uint32_t id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : &found->second;
}

}  // namespace hvd
