// Negotiation over hosts: all ranks are threads that hear and are heard as in a
// job. The loopback links of the hosts carry few bytes at a time.
#include <algorithm>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/negotiator_util.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

using Ended = NegotiatingHosts::Ended;

struct Layout {
  int num_hosts;
  int ranks_a_host;
};
constexpr Layout kLayouts[] = {{1, 3}, {2, 1}, {2, 2}, {3, 2}};

// Runs `test` with hosts of each layout.
template <typename Test>
void ForEachLayout(const CoordinatorOptions& options, const Test& test) {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.num_hosts);
    CAPTURE(layout.ranks_a_host);
    NegotiatingHosts hosts(layout.num_hosts, layout.ranks_a_host, options);
    test(&hosts);
  }
}

// What the ranks of a test have seen, to be compared.
template <typename T>
class Seen {
 public:
  void Add(T one) {
    std::lock_guard<std::mutex> lock(mu_);
    all_.push_back(std::move(one));
  }
  void CheckAllAreEqual(size_t count) {
    REQUIRE(all_.size() == count);
    for (const T& one : all_) CHECK(one == all_[0]);
  }
  const T& first() const { return all_[0]; }

 private:
  std::mutex mu_;
  std::vector<T> all_;
};

std::vector<std::string> NamesOf(const Ended& ended) {
  std::vector<std::string> names;
  for (const auto& one : ended) names.push_back(one.name);
  return names;
}

TEST_CASE("all ranks hear the same, new and known") {
  ForEachLayout({}, [](NegotiatingHosts* hosts) {
    Seen<std::vector<std::string>> order;
    hosts->Run([&](NegotiatingRank* rank) {
      std::mt19937 random(static_cast<unsigned>(rank->rank()));
      std::vector<std::string> heard;
      std::vector<std::string> names;
      for (int i = 0; i < 20; ++i) names.push_back("t" + std::to_string(i));
      for (int round = 0; round < 5; ++round) {
        std::shuffle(names.begin(), names.end(), random);
        for (const std::string& name : names) rank->Submit(name);
        const Ended ended = hosts->Finish(rank);
        CHECK(ended.size() == names.size());
        for (const auto& one : ended) {
          CHECK_OK(one.status);
          CHECK((one.item.cached_id != 0) == (round > 0));
          heard.push_back(one.name);
        }
      }
      order.Add(heard);
    });
    order.CheckAllAreEqual(static_cast<size_t>(hosts->size()));
  });
}

TEST_CASE("what a rank says keeps the order of its requests") {
  RequestTable table;
  const auto of = [](const std::string& name) {
    Request request;
    request.name = name;
    request.tensors.resize(1);
    request.tensors[0].shape = {2};
    return request;
  };
  uint32_t id = 0;
  for (const char* name : {"a", "b", "d"}) {
    ResponseItem item;
    item.name = name;
    table.Remember(++id, item,
                   std::make_shared<RequestParams>(ParamsOf(of(name))));
  }
  std::vector<RankMessage> messages;
  for (const char* name : {"a", "b", "new", "d"}) {
    table.Admit(of(name), Clock::now(), &messages);
  }
  REQUIRE(messages.size() == 3);
  CHECK(NumIds(messages[0].ids) == 2);
  CHECK(messages[1].name == "new");
  CHECK(NumIds(messages[2].ids) == 1);
  CHECK(messages[2].ids[0].first == 3);
  table.TakeAll();
}

TEST_CASE("ids are evicted and forgotten on all hosts") {
  CoordinatorOptions options;
  options.cache_capacity = 8;
  ForEachLayout(options, [](NegotiatingHosts* hosts) {
    hosts->Run([&](NegotiatingRank* rank) {
      std::mt19937 random(static_cast<unsigned>(rank->rank()));
      for (int round = 0; round < 20; ++round) {
        std::vector<int> order(6);
        std::iota(order.begin(), order.end(), round % 7 * 3);
        std::shuffle(order.begin(), order.end(), random);
        for (int i : order) rank->Submit("t" + std::to_string(i), {round % 2});
        for (const auto& one : hosts->Finish(rank)) CHECK_OK(one.status);
      }
    });
  });
}

// The text of a call that fails on all ranks of six.
std::string ErrorOfSix(const Layout& layout,
                       const std::function<Request(int rank)>& call) {
  NegotiatingHosts hosts(layout.num_hosts, layout.ranks_a_host);
  Seen<std::string> text;
  hosts.Run([&](NegotiatingRank* rank) {
    // Some know the call.
    rank->Submit("a");
    hosts.Finish(rank);
    rank->Submit(call(rank->rank()));
    const Ended ended = hosts.Finish(rank);
    REQUIRE(ended.size() == 1);
    text.Add(ended[0].status.message());
  });
  text.CheckAllAreEqual(6);
  return text.first();
}

TEST_CASE("a mismatch reads as on one host") {
  const auto call = [](int rank) {
    Request request;
    request.name = "a";
    request.tensors.resize(rank == 2 ? 2 : 1);
    for (RequestTensor& tensor : request.tensors) tensor.shape = {2};
    if (rank > 3) request.op = ReduceOp::kMax;
    return request;
  };
  const std::string text = ErrorOfSix({1, 6}, call);
  CHECK(text ==
        "ranks disagree on the number of tensors: 1 tensor on ranks 0, 1, 3, 4 "
        "and 5; 2 tensors on rank 2");
  for (const Layout& layout : {Layout{2, 3}, Layout{3, 2}, Layout{6, 1}}) {
    CHECK(ErrorOfSix(layout, call) == text);
  }
}

TEST_CASE("a rank that cannot take part is named") {
  const auto call = [](int rank) {
    Request request;
    request.name = "a";
    request.tensors.resize(1);
    request.tensors[0].shape = {2};
    if (rank == 4) request.failure = Status::Internal("no memory");
    return request;
  };
  for (const Layout& layout : {Layout{1, 6}, Layout{2, 3}}) {
    CHECK(ErrorOfSix(layout, call) == "rank 4 cannot take part: no memory");
  }
}

TEST_CASE("a name submitted twice fails on all hosts") {
  ForEachLayout({}, [](NegotiatingHosts* hosts) {
    const int last = hosts->size() - 1;
    hosts->Run([&](NegotiatingRank* rank) {
      if (rank->rank() == last) {
        for (const char* name : {"a", "a", "told"}) rank->Submit(name);
      } else {
        rank->Submit("told");
        CHECK(NamesOf(hosts->Finish(rank)) == std::vector<std::string>{"told"});
        rank->Submit("a");
      }
      const Ended ended = hosts->Finish(rank);
      CHECK(Contains(ended.back().status.message(),
                     "submitted twice by rank " + std::to_string(last)));
    });
  });
}

// Rank r gives rank t (r + t) % 3 rows.
TEST_CASE("the rows of an alltoall are those of the host") {
  for (const Layout& layout : {Layout{1, 4}, Layout{2, 2}, Layout{4, 1}}) {
    NegotiatingHosts hosts(layout.num_hosts, layout.ranks_a_host);
    hosts.Run([&](NegotiatingRank* rank) {
      Request request;
      request.kind = CollectiveKind::kAlltoall;
      request.name = "x";
      std::vector<int64_t> received;
      for (int peer = 0; peer < 4; ++peer) {
        request.splits.push_back((rank->rank() + peer) % 3);
        received.push_back((peer + rank->rank()) % 3);
      }
      request.tensors.resize(1);
      request.tensors[0].shape = {
          std::accumulate(request.splits.begin(), request.splits.end(),
                          int64_t{0}),
          5};
      RankPlace place{rank->rank(), 4, {}};
      const int local_rank = rank->group()->rank();
      for (int i = 0; layout.num_hosts > 1 && i < layout.ranks_a_host; ++i) {
        place.host_ranks.push_back(rank->rank() - local_rank + i);
      }
      for (int round = 0; round < 2; ++round) {
        rank->Submit(request);
        const Ended ended = hosts.Finish(rank);
        REQUIRE(ended.size() == 1);
        REQUIRE_OK(ended[0].status);
        const ResponseItem& item = ended[0].item;
        CHECK_OK(CheckRows(ParamsOf(request), place, item));
        if (layout.num_hosts == 1) {
          CHECK(item.rows.size() == 4);
          continue;
        }
        const size_t own = static_cast<size_t>(local_rank);
        CHECK(item.rows.empty());
        CHECK(item.host_rows.sent[own] == request.splits);
        CHECK(item.host_rows.received[own] == received);
        CHECK(item.host_rows.longest == 2);
      }
    });
  }
}

TEST_CASE("an allgather of rows that change each time needs no wait") {
  NegotiatingHosts hosts(2, 3);
  hosts.Run([&](NegotiatingRank* rank) {
    const Clock::time_point begin = Clock::now();
    constexpr int kRounds = 50;
    for (int round = 0; round < kRounds; ++round) {
      Request request;
      request.kind = CollectiveKind::kAllgather;
      request.name = "g";
      request.tensors.resize(1);
      // Some ranks come by the id of the last round.
      const int changes = rank->rank() % 2;
      request.tensors[0].shape = {rank->rank() + round * changes};
      rank->Submit(request);
      const Ended ended = hosts.Finish(rank);
      REQUIRE(ended.size() == 1);
      REQUIRE_OK(ended[0].status);
      const std::vector<int64_t> rows{0, 1 + round, 2, 3 + round, 4, 5 + round};
      CHECK(ended[0].item.rows == std::vector<std::vector<int64_t>>{rows});
    }
#ifndef HVD_SANITIZED
    CHECK(Clock::now() - begin < kRounds * kTellPartAfter / 2);
#else
    (void)begin;
#endif
  });
}

TEST_CASE("a stall names ranks of all hosts, and the late ones hear of it") {
  CoordinatorOptions options;
  options.stalls.warning_seconds = 0.1;
  options.stalls.timeout_seconds = 0.4;
  options.global_ranks = {3, 5, 8, 9};
  for (const Layout& layout : {Layout{1, 4}, Layout{2, 2}, Layout{4, 1}}) {
    CAPTURE(layout.num_hosts);
    NegotiatingHosts hosts(layout.num_hosts, layout.ranks_a_host, options);
    std::atomic<int> num_failed{0};
    hosts.Run([&](NegotiatingRank* rank) {
      const auto check_error = [&] {
        const Ended ended = hosts.Finish(rank);
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].status.code() == StatusCode::kStalled);
        CHECK(
            ended[0].status.message() ==
            Advised("ranks 3, 8 and 9 wait, rank 5 has not come within 0.4 s"));
      };
      if (rank->rank() == 1) {
        while (num_failed < 3) {
          hosts.WorkFor(rank, std::chrono::milliseconds(5));
        }
      }
      rank->Submit("a");
      check_error();
      ++num_failed;
      if (rank->rank() == 0) {
        REQUIRE(rank->warnings().size() == 1);
        CHECK(rank->warnings()[0] ==
              Advised(
                  "'a': ranks 3, 8 and 9 wait, rank 5 has not come for 0.1 s"));
      }
      // All is well again.
      rank->Submit("a");
      const Ended ended = hosts.Finish(rank);
      REQUIRE(ended.size() == 1);
      CHECK_OK(ended[0].status);
    });
  }
}

TEST_CASE("ranks that wait for each other are told") {
  CoordinatorOptions options;
  options.stalls.warning_seconds = 0.1;
  options.stalls.timeout_seconds = 0.3;
  NegotiatingHosts hosts(2, 2, options);
  hosts.Run([&](NegotiatingRank* rank) {
    const bool is_odd = rank->rank() % 2 == 1;
    rank->Submit(is_odd ? "b" : "a");
    const Ended ended = hosts.Finish(rank);
    REQUIRE(ended.size() == 1);
    CHECK(ended[0].status.code() == StatusCode::kStalled);
    CHECK(Contains(ended[0].status.message(),
                   is_odd ? "rank 2 waits for 'a' instead"
                          : "rank 3 waits for 'b' instead"));
  });
}

TEST_CASE("a rank that comes late is known to be the last") {
  for (const Layout& layout : {Layout{2, 2}, Layout{2, 3}}) {
    NegotiatingHosts hosts(layout.num_hosts, layout.ranks_a_host);
    const int late = hosts.size() - 1;
    hosts.Run([&](NegotiatingRank* rank) {
      for (int round = 0; round < 3; ++round) {
        if (rank->rank() == late) {
          hosts.WorkFor(rank, 3 * kTellPartAfter);
        }
        rank->Submit("a");
        const Ended ended = hosts.Finish(rank);
        REQUIRE(ended.size() == 1);
        CHECK_OK(ended[0].status);
        CHECK(ended[0].item.last_rank == (rank->rank() == 0 ? late : -1));
      }
    });
  }
}

// Rank r has data for 1 + r * 5 % 7 steps of two calls each.
TEST_CASE("ranks that join are not waited for, on any host") {
  ForEachLayout({}, [](NegotiatingHosts* hosts) {
    const int size = hosts->size();
    Seen<std::vector<int>> last;
    hosts->Run([&](NegotiatingRank* rank) {
      std::vector<int> last_ranks;
      for (int round = 0; round < 3; ++round) {
        const auto steps_of = [round](int r) {
          return 1 + (r + round) * 5 % 7;
        };
        for (int step = 0; step < steps_of(rank->rank()); ++step) {
          rank->Submit("a" + std::to_string(round));
          rank->Submit("b" + std::to_string(step));
          const Ended ended = hosts->Finish(rank);
          CHECK(ended.size() == 2);
          bool has_any_joined = false;
          for (int r = 0; r < size; ++r) {
            has_any_joined = has_any_joined || steps_of(r) <= step;
          }
          for (const auto& one : ended) {
            CHECK_OK(one.status);
            CHECK(one.divisor == (has_any_joined ? size : 0));
          }
        }
        rank->Join();
        const Ended ended = hosts->Finish(rank);
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].name == "join");
        CHECK_OK(ended[0].status);
        last_ranks.push_back(ended[0].last_rank);
      }
      last.Add(last_ranks);
    });
    last.CheckAllAreEqual(static_cast<size_t>(size));
  });
}

TEST_CASE("ranks of all hosts must agree on their joins") {
  NegotiatingHosts hosts(2, 2);
  hosts.Run([&](NegotiatingRank* rank) {
    for (const bool agree : {false, true, false}) {
      rank->Submit("a");
      CHECK(NamesOf(hosts.Finish(rank)) == std::vector<std::string>{"a"});
      rank->Join(/*average_over_active=*/agree || rank->rank() == 3);
      const Ended ended = hosts.Finish(rank);
      REQUIRE(ended.size() == 1);
      CHECK(ended[0].status.ok() == agree);
    }
  });
}

}  // namespace
}  // namespace hvd
