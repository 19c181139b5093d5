#include "tf_ops/negotiation/negotiator.h"

#include <utility>

#include "tf_ops/negotiation/rows.h"

namespace hvd {

Negotiator::Negotiator(ControlChannel* control, ControlLinks* links, int rank,
                       const CoordinatorOptions& options)
    : control_(control),
      links_(links),
      rank_(rank),
      options_(options),
      hosts_(options.global_ranks.size(), options.hosts),
      limits_{static_cast<int32_t>(options.global_ranks.size()),
              options.cache_capacity},
      from_ranks_(static_cast<size_t>(control->size())) {
  if (rank == 0) {
    coordinator_ = std::make_unique<Coordinator>(hosts_.num_ranks(), options);
  }
  if (links == nullptr) return;
  from_hosts_.resize(static_cast<size_t>(links->num_hosts()));
  host_ = std::make_unique<HostCoordinator>(hosts_.ranks_of(links->host()));
}

Status Negotiator::Say(const RankMessage& message) {
  if (is_leader()) return TakeIn(/*local_rank=*/0, message, Clock::now());
  std::vector<uint8_t> bytes;
  Encode(message, &bytes);
  control_->Send(0, bytes);
  return Status::Ok();
}

Status Negotiator::TakeIn(int local_rank, const RankMessage& message,
                          Clock::time_point now) {
  return host_ != nullptr ? host_->OnMessage(local_rank, message, now)
                          : coordinator_->OnMessage(local_rank, message, now);
}

Status Negotiator::Exchange(std::vector<Response>* responses) {
  if (!is_leader()) {
    HVD_RETURN_IF_ERROR(control_->Flush());
    return ReceiveResponses(responses);
  }
  const Clock::time_point now = Clock::now();
  HVD_RETURN_IF_ERROR(ReceiveFromRanks(now));
  if (host_ != nullptr) HVD_RETURN_IF_ERROR(TellCoordinator(now));
  if (coordinator_ == nullptr) {
    HVD_RETURN_IF_ERROR(ReceiveResponses(responses));
  } else {
    HVD_RETURN_IF_ERROR(ReceiveFromHosts(now));
    for (Response& response : coordinator_->TakeResponses()) {
      Announce(std::move(response), responses);
    }
  }
  // All ranks must know all of it before this one blocks in a collective.
  return Flush(/*all=*/!responses->empty());
}

Status Negotiator::ReceiveFromRanks(Clock::time_point now) {
  for (int peer = 1; peer < control_->size(); ++peer) {
    Inbox& inbox = from_ranks_[static_cast<size_t>(peer)];
    bool received = false;
    HVD_RETURN_IF_ERROR(control_->Receive(peer, inbox.bytes(), &received));
    if (!received) continue;
    HVD_RETURN_IF_ERROR(inbox.TakeMessages<RankMessage>(
        limits_, [&](const RankMessage& message, size_t, size_t) {
          return TakeIn(peer, message, now);
        }));
  }
  return Status::Ok();
}

Status Negotiator::TellCoordinator(Clock::time_point now) {
  for (const RankMessage& message : host_->TakeMessages(now)) {
    if (coordinator_ != nullptr) {
      HVD_RETURN_IF_ERROR(coordinator_->OnMessage(/*group=*/0, message, now));
      continue;
    }
    std::vector<uint8_t> bytes;
    Encode(message, &bytes);
    links_->Send(0, bytes);
  }
  return Status::Ok();
}

Status Negotiator::ReceiveFromHosts(Clock::time_point now) {
  for (int host = 1; host < static_cast<int>(from_hosts_.size()); ++host) {
    Inbox& inbox = from_hosts_[static_cast<size_t>(host)];
    bool received = false;
    HVD_RETURN_IF_ERROR(links_->Receive(host, inbox.bytes(), &received));
    if (!received) continue;
    HVD_RETURN_IF_ERROR(inbox.TakeMessages<RankMessage>(
        limits_, [&](const RankMessage& message, size_t, size_t) {
          return coordinator_->OnMessage(host, message, now);
        }));
  }
  return Status::Ok();
}

Status Negotiator::ReceiveResponses(std::vector<Response>* responses) {
  Inbox& inbox = host_ != nullptr ? from_hosts_[0] : from_ranks_[0];
  bool received = false;
  HVD_RETURN_IF_ERROR(host_ != nullptr
                          ? links_->Receive(0, inbox.bytes(), &received)
                          : control_->Receive(0, inbox.bytes(), &received));
  if (!received) return Status::Ok();
  return inbox.TakeMessages<Response>(
      limits_, [&](Response&& response, size_t begin, size_t end) {
        if (host_ != nullptr) {
          host_->OnResponse(response);
          const auto bytes = inbox.bytes()->begin();
          TellRanks({bytes + static_cast<ptrdiff_t>(begin),
                     bytes + static_cast<ptrdiff_t>(end)});
        }
        responses->push_back(std::move(response));
        return Status::Ok();
      });
}

void Negotiator::Announce(Response response, std::vector<Response>* responses) {
  if (host_ != nullptr) {
    host_->OnResponse(response);
    TellRanks(EncodeForHosts(&response));
  } else if (control_->size() > 1) {
    std::vector<uint8_t> bytes;
    Encode(response, &bytes);
    TellRanks(bytes);
  }
  responses->push_back(std::move(response));
}

// Sends it to the other hosts; `*response` becomes what this one has to know,
// and is returned encoded. All hosts get the same bytes, unless they have to
// know different rows.
std::vector<uint8_t> Negotiator::EncodeForHosts(Response* response) {
  std::vector<uint8_t> bytes;
  // Alltoalls do not fuse: one is the only item.
  ResponseItem* item = nullptr;
  if (auto* run = std::get_if<Execution>(response)) item = &run->items[0];
  if (item == nullptr || item->kind != CollectiveKind::kAlltoall) {
    Encode(*response, &bytes);
    for (int host = 1; host < links_->num_hosts(); ++host) {
      links_->Send(host, bytes);
    }
    return bytes;
  }
  const std::vector<std::vector<int64_t>> all = std::move(item->rows);
  const AlltoallRows rows(&all);
  item->rows.clear();
  for (int host = links_->num_hosts() - 1; host >= 0; --host) {
    item->host_rows = rows.Of(hosts_.ranks_of(host));
    bytes.clear();
    Encode(*response, &bytes);
    if (host > 0) links_->Send(host, bytes);
  }
  return bytes;
}

void Negotiator::TellRanks(const std::vector<uint8_t>& bytes) {
  for (int peer = 1; peer < control_->size(); ++peer) {
    control_->Send(peer, bytes);
  }
}

Status Negotiator::Flush(bool all) {
  if (links_ != nullptr) {
    // Only rank 0 waits for the leaders: it may itself wait for them in a
    // collective, and read nothing.
    const bool all_hosts = all && coordinator_ != nullptr;
    HVD_RETURN_IF_ERROR(all_hosts ? links_->FlushAll() : links_->Flush());
  }
  return all ? control_->FlushAll() : control_->Flush();
}

Status Negotiator::CheckStalls(Clock::time_point now,
                               std::optional<Clock::time_point> oldest,
                               std::vector<std::string>* warnings) {
  if (coordinator_ != nullptr) {
    *warnings = coordinator_->CheckStalls(now);
    return Status::Ok();
  }
  if (!oldest.has_value()) return Status::Ok();
  return CheckCoordinator(options_.stalls,
                          options_.global_ranks[static_cast<size_t>(rank_)],
                          options_.global_ranks[0], now - *oldest);
}

}  // namespace hvd
