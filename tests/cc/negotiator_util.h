// Ranks of several hosts that agree on what to run and run nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/negotiator.h"
#include "tf_ops/negotiation/request_table.h"
#include "tf_ops/wire/loopback/loopback_links.h"

namespace hvd {

// One rank's requests, without an engine. For the rank's thread alone.
class NegotiatingRank {
 public:
  // What has ended, in the order of the responses.
  struct Ended {
    std::string name;  // "join" for a join
    Status status;
    ResponseItem item;
    int divisor = 0;
    int last_rank = -1;  // of a join
  };

  NegotiatingRank(HostGroup* group, ControlLinks* links, int rank,
                  const CoordinatorOptions& options)
      : group_(group),
        rank_(rank),
        negotiator_(group->control(), links, rank, options) {}

  int rank() const { return rank_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  bool is_idle() const { return table_.empty(); }
  HostGroup* group() { return group_; }

  void Submit(Request request) {
    std::vector<RankMessage> messages;
    table_.Admit(std::move(request), Clock::now(), &messages);
    for (const RankMessage& message : messages) {
      REQUIRE_OK(negotiator_.Say(message));
    }
  }
  // An allreduce of float32.
  void Submit(const std::string& name, Shape shape = {2}) {
    Request request;
    request.name = name;
    request.tensors.emplace_back();
    request.tensors[0].shape = std::move(shape);
    Submit(std::move(request));
  }
  void Join(bool average_over_active = false) {
    table_.AdmitJoin(Request());
    RankMessage message;
    message.type = RankMessage::Type::kJoin;
    message.average_over_active = average_over_active;
    REQUIRE_OK(negotiator_.Say(message));
  }

  // Talks to the others once. Appends what has ended to `*ended`.
  void Work(std::vector<Ended>* ended) {
    const uint32_t ticket = group_->doorbell()->Ticket();
    std::vector<Response> responses;
    REQUIRE_OK(negotiator_.Exchange(&responses));
    for (const Response& response : responses) {
      std::visit([&](const auto& one) { Take(one, ended); }, response);
    }
    std::vector<std::string> warnings;
    REQUIRE_OK(negotiator_.CheckStalls(Clock::now(), std::nullopt, &warnings));
    warnings_.insert(warnings_.end(), warnings.begin(), warnings.end());
    if (!responses.empty()) return;
    group_->doorbell()->Wait(ticket, std::chrono::milliseconds(2),
                             /*spin=*/false);
  }

 private:
  void Take(const Execution& execution, std::vector<Ended>* ended) {
    for (const ResponseItem& item : execution.items) {
      TakeItem(item, execution.divisor, ended);
    }
  }
  void Take(const Failure& failure, std::vector<Ended>* ended) {
    if (!Concerns(failure.ranks, rank_)) return;
    REQUIRE(table_.Take(failure.name) != nullptr);
    ended->push_back({failure.name, failure.error, {}, 0, -1});
  }
  void Take(const Eviction& eviction, std::vector<Ended>*) {
    for (const IdRun& run : eviction.ids) {
      for (uint32_t i = 0; i < run.count; ++i) table_.Forget(run.first + i);
    }
    RankMessage answer;
    answer.type = RankMessage::Type::kForgotten;
    answer.ids = eviction.ids;
    REQUIRE_OK(negotiator_.Say(answer));
  }
  void Take(const JoinEnd& end, std::vector<Ended>* ended) {
    if (!Concerns(end.ranks, rank_)) return;
    REQUIRE(table_.TakeJoin() != nullptr);
    ended->push_back({"join", end.error, {}, 0, end.last_rank});
  }
  void Take(const Query& query, std::vector<Ended>*) {
    if (!Concerns(query.ranks, rank_)) return;
    RankMessage answer;
    answer.type = RankMessage::Type::kElsewhere;
    answer.name = query.name;
    REQUIRE_OK(negotiator_.Say(answer));
  }
  void Take(const Tunables&, std::vector<Ended>*) {}

  void TakeItem(const ResponseItem& item, int divisor,
                std::vector<Ended>* ended) {
    const KnownRequest* known =
        item.cached_id == 0 ? nullptr : table_.Find(item.cached_id);
    REQUIRE((item.cached_id == 0 || known != nullptr));
    const std::string name = known == nullptr ? item.name : known->name;
    const auto pending =
        known == nullptr ? table_.Take(name) : table_.Take(*known);
    REQUIRE((pending != nullptr || table_.has_join()));
    if (item.new_id != 0) {
      table_.Remember(item.new_id, item,
                      pending == nullptr ? item.params : pending->params);
    }
    if (pending == nullptr) return;
    ended->push_back({name, Status::Ok(), item, divisor, -1});
    if (known == nullptr) return;
    ended->back().item.rows = known->rows;
    ended->back().item.host_rows = known->host_rows;
  }

  HostGroup* const group_;
  const int rank_;
  RequestTable table_;
  Negotiator negotiator_;
  std::vector<std::string> warnings_;
};

// The ranks of `num_hosts` hosts, each a thread.
class NegotiatingHosts {
 public:
  using Ended = std::vector<NegotiatingRank::Ended>;

  NegotiatingHosts(int num_hosts, int ranks_a_host,
                   CoordinatorOptions options = {}) {
    const int size = num_hosts * ranks_a_host;
    if (options.global_ranks.empty()) {
      options.global_ranks.resize(static_cast<size_t>(size));
      std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
    }
    for (int host = 0; host < num_hosts; ++host) {
      auto groups = CreateInMemory(ranks_a_host);
      for (auto& group : groups) {
        if (num_hosts > 1) options.hosts.push_back(host);
        groups_.push_back(std::move(group));
      }
    }
    LoopbackOptions loopback;
    loopback.capacity_bytes = 100;  // messages come in parts
    loopback.ring = [this, ranks_a_host](int host) {
      groups_[static_cast<size_t>(host * ranks_a_host)]->doorbell()->RingOwn();
    };
    if (num_hosts > 1) links_ = CreateLoopbackLinks(num_hosts, loopback);
    for (int rank = 0; rank < size; ++rank) {
      HostGroup* const group = groups_[static_cast<size_t>(rank)].get();
      ControlLinks* links = nullptr;
      if (num_hosts > 1 && group->rank() == 0) {
        links = links_[static_cast<size_t>(rank / ranks_a_host)].get();
      }
      ranks_.push_back(
          std::make_unique<NegotiatingRank>(group, links, rank, options));
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }

  // Runs `script` on the thread of each rank.
  void Run(const std::function<void(NegotiatingRank*)>& script) {
    std::atomic<int> num_done{0};
    RunOnThreads(
        size(),
        [&](int index) {
          NegotiatingRank* const rank =
              ranks_[static_cast<size_t>(index)].get();
          script(rank);
          ++num_done;
          // The others may need this one to hear and be heard.
          Ended none;
          while (num_done < size() && !failed_) rank->Work(&none);
          CHECK(none.empty());
        },
        [this](int) { failed_ = true; });
  }

  // Works until all requests of `rank` have ended; returns them.
  Ended Finish(NegotiatingRank* rank) {
    Ended ended;
    while (!rank->is_idle()) {
      REQUIRE(!failed_);
      rank->Work(&ended);
    }
    return ended;
  }
  // Lets `rank` talk to the others for a while.
  void WorkFor(NegotiatingRank* rank, std::chrono::milliseconds time) {
    Ended none;
    const Clock::time_point end = Clock::now() + time;
    while (Clock::now() < end && !failed_) rank->Work(&none);
    CHECK(none.empty());
  }

 private:
  std::vector<std::unique_ptr<HostGroup>> groups_;       // by rank
  std::vector<std::unique_ptr<ControlLinks>> links_;     // by host
  std::vector<std::unique_ptr<NegotiatingRank>> ranks_;  // by rank
  std::atomic<bool> failed_{false};
};

}  // namespace hvd
