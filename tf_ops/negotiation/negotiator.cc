#include "tf_ops/negotiation/negotiator.h"

#include <utility>

namespace hvd {
namespace {

// Drops what has been decoded.
void Consume(size_t num_bytes, std::vector<uint8_t>* inbox) {
  inbox->erase(inbox->begin(),
               inbox->begin() + static_cast<ptrdiff_t>(num_bytes));
}

}  // namespace

Negotiator::Negotiator(ControlChannel* control,
                       const CoordinatorOptions& options)
    : control_(control),
      options_(options),
      limits_{control->size(), options.cache_capacity},
      inboxes_(static_cast<size_t>(control->size())) {
  if (control->rank() == 0) {
    coordinator_ = std::make_unique<Coordinator>(control->size(), options);
  }
}

Status Negotiator::Say(const RankMessage& message) {
  if (coordinator_ != nullptr) {
    return coordinator_->OnMessage(0, message, Clock::now());
  }
  std::vector<uint8_t> bytes;
  Encode(message, &bytes);
  control_->Send(0, bytes);
  return Status::Ok();
}

Status Negotiator::Exchange(std::vector<Response>* responses) {
  if (coordinator_ == nullptr) {
    HVD_RETURN_IF_ERROR(control_->Flush());
    return ReceiveResponses(responses);
  }
  HVD_RETURN_IF_ERROR(ReceiveRequests());
  for (Response& response : coordinator_->TakeResponses()) {
    if (control_->size() > 1) {
      std::vector<uint8_t> bytes;
      Encode(response, &bytes);
      for (int peer = 1; peer < control_->size(); ++peer) {
        control_->Send(peer, bytes);
      }
    }
    responses->push_back(std::move(response));
  }
  // All ranks must know all of it before this one blocks in a collective.
  if (!responses->empty()) return control_->FlushAll();
  return control_->Flush();
}

Status Negotiator::ReceiveRequests() {
  const Clock::time_point now = Clock::now();
  for (int peer = 1; peer < control_->size(); ++peer) {
    std::vector<uint8_t>& inbox = inboxes_[static_cast<size_t>(peer)];
    bool received = false;
    HVD_RETURN_IF_ERROR(control_->Receive(peer, &inbox, &received));
    if (!received) continue;
    size_t offset = 0;
    RankMessage message;
    bool found = true;
    while (true) {
      HVD_RETURN_IF_ERROR(Decode(inbox, &offset, limits_, &message, &found));
      if (!found) break;
      HVD_RETURN_IF_ERROR(coordinator_->OnMessage(peer, message, now));
    }
    Consume(offset, &inbox);
  }
  return Status::Ok();
}

Status Negotiator::ReceiveResponses(std::vector<Response>* responses) {
  std::vector<uint8_t>& inbox = inboxes_[0];
  bool received = false;
  HVD_RETURN_IF_ERROR(control_->Receive(0, &inbox, &received));
  if (!received) return Status::Ok();
  size_t offset = 0;
  bool found = true;
  while (true) {
    Response response;
    HVD_RETURN_IF_ERROR(Decode(inbox, &offset, limits_, &response, &found));
    if (!found) break;
    responses->push_back(std::move(response));
  }
  Consume(offset, &inbox);
  return Status::Ok();
}

Status Negotiator::CheckStalls(Clock::time_point now,
                               std::optional<Clock::time_point> oldest,
                               std::vector<std::string>* warnings) {
  if (coordinator_ != nullptr) {
    *warnings = coordinator_->CheckStalls(now);
    return Status::Ok();
  }
  if (!oldest.has_value()) return Status::Ok();
  const size_t rank = static_cast<size_t>(control_->rank());
  return CheckCoordinator(options_.stalls, options_.global_ranks[rank],
                          options_.global_ranks[0], now - *oldest);
}

}  // namespace hvd
