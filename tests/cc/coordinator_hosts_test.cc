// The coordinator alone, with messages of whole hosts.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {
namespace {

using Type = RankMessage::Type;

// Host 0 has ranks 0 and 3, host 1 has ranks 1, 2 and 4.
CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.hosts = {0, 1, 1, 0, 1};
  return options;
}

RankMessage By(std::vector<int32_t> ranks, RankMessage message) {
  message.ranks = std::move(ranks);
  return message;
}

// Lets all know `name` and returns its id.
uint32_t Learn(Coordinator* c, const std::string& name) {
  for (int host : {0, 1}) REQUIRE_OK(c->OnMessage(host, ACall(name), kStart));
  return First<Execution>(c).items[0].new_id;
}

TEST_CASE("two messages are a round of two hosts") {
  Coordinator c(5, Options());
  const uint32_t id = Learn(&c, "a");
  RankMessage ready = Ready({id});
  ready.last_rank = 3;
  REQUIRE_OK(c.OnMessage(0, ready, After(0)));
  CHECK(c.TakeResponses().empty());
  ready.last_rank = 2;
  REQUIRE_OK(c.OnMessage(1, ready, After(1)));
  const ResponseItem item = First<Execution>(&c).items[0];
  CHECK(item.cached_id == id);
  CHECK(item.last_rank == 2);
  CHECK(item.late_by == std::chrono::seconds(1));
  CHECK(!c.has_pending());
}

TEST_CASE("whole hosts, some ranks and requests in full make one call") {
  using Messages = std::vector<std::pair<int, RankMessage>>;
  const uint32_t id = 1;
  for (const Messages& messages :
       {Messages{{1, By({2}, Ready({id}))},
                 {0, Ready({id})},
                 {1, By({1, 4}, Ready({id}))}},
        Messages{{0, Ready({id})},
                 {1, By({1}, ACall("a"))},
                 {1, By({2, 4}, Ready({id}))}},
        Messages{{1, By({1, 2, 4}, Ready({id}))}, {0, ACall("a")}},
        Messages{{1, Ready({id})},
                 {0, By({3}, ACall("a"))},
                 {0, By({0}, Ready({id}))}}}) {
    Coordinator c(5, Options());
    REQUIRE(Learn(&c, "a") == id);
    bool all_by_id = true;
    for (const auto& [host, message] : messages) {
      CHECK(c.TakeResponses().empty());
      REQUIRE_OK(c.OnMessage(host, message, kStart));
      all_by_id = all_by_id && message.type == Type::kReady;
    }
    const ResponseItem item = First<Execution>(&c).items[0];
    CHECK(!c.has_pending());
    CHECK(item.cached_id == (all_by_id ? id : 0));
    CHECK(item.new_id == (all_by_id ? 0 : 2));
    // What is known now serves the next round.
    for (int host : {0, 1}) {
      REQUIRE_OK(c.OnMessage(host, Ready({all_by_id ? 1u : 2u}), kStart));
    }
    CHECK(First<Execution>(&c).items[0].cached_id == (all_by_id ? 1 : 2));
  }
}

TEST_CASE("a mismatch of hosts names ranks") {
  Coordinator c(5, Options());
  const uint32_t id = Learn(&c, "a");
  REQUIRE_OK(c.OnMessage(0, Ready({id}), kStart));
  REQUIRE_OK(c.OnMessage(1, By({1, 4}, ACall("a", {3})), kStart));
  REQUIRE_OK(c.OnMessage(1, By({2}, Ready({id})), kStart));
  CHECK(First<Failure>(&c).error.message() ==
        "ranks disagree on the shape: [2] on ranks 0, 2 and 3; [3] on ranks 1 "
        "and 4");
}

TEST_CASE("a stall of a host names its ranks") {
  Coordinator c(5, Options());
  const uint32_t id = Learn(&c, "a");
  REQUIRE_OK(c.OnMessage(1, Ready({id}), kStart));
  CHECK(
      c.CheckStalls(After(10))[0] ==
      Advised(
          "'a': ranks 1, 2 and 4 wait, ranks 0 and 3 have not come for 10 s"));
  First<Query>(&c);
  c.CheckStalls(After(60));
  const Failure failure = First<Failure>(&c);
  CHECK(failure.error.code() == StatusCode::kStalled);
  CHECK(failure.ranks == std::vector<int32_t>{1, 2, 4});
  // Host 0 comes late, while rank 1 calls again.
  REQUIRE_OK(c.OnMessage(1, By({1}, ACall("a")), After(61)));
  REQUIRE_OK(c.OnMessage(0, Ready({id}), After(61)));
  const std::vector<Response> late = c.TakeResponses();
  REQUIRE(late.size() == 2);
  CHECK(std::get<Failure>(late[0]).ranks == std::vector<int32_t>{0});
  CHECK(std::get<Failure>(late[1]).ranks == std::vector<int32_t>{3});
  REQUIRE_OK(c.OnMessage(1, By({2, 4}, Ready({id})), After(61)));
  REQUIRE_OK(c.OnMessage(0, Ready({id}), After(61)));
  First<Execution>(&c);
}

TEST_CASE("an id is forgotten once all hosts have") {
  CoordinatorOptions options = Options();
  options.cache_capacity = 1;
  Coordinator c(5, options);
  const uint32_t id = Learn(&c, "a");
  for (const char* name : {"b", "c"}) Learn(&c, name);
  REQUIRE_OK(c.OnMessage(0, Ready({id}), kStart));  // may still come
  REQUIRE_OK(c.OnMessage(0, Ids(Type::kForgotten, {id}), kStart));
  REQUIRE_OK(c.OnMessage(1, Ready({id}), kStart));
  First<Execution>(&c);
  REQUIRE_OK(c.OnMessage(1, Ids(Type::kForgotten, {id}), kStart));
  CHECK(!c.OnMessage(1, Ready({id}), kStart).ok());
}

TEST_CASE("a host speaks for its own ranks alone, once for each") {
  for (const Type type : {Type::kRequest, Type::kReady, Type::kDuplicate,
                          Type::kForgotten, Type::kJoin, Type::kElsewhere}) {
    Coordinator c(5, Options());
    RankMessage message = ACall("a");
    message.type = type;
    AppendId(Learn(&c, "a"), &message.ids);
    const auto fails = [&](std::vector<int32_t> ranks, int32_t last_rank) {
      message.ranks = std::move(ranks);
      message.last_rank = last_rank;
      const Status status = c.OnMessage(1, message, kStart);
      return Contains(status.message(), "the host of rank 1 ") &&
             status.code() == StatusCode::kInternal;
    };
    CHECK(fails({0}, -1));       // of host 0
    CHECK(fails({1, 3}, -1));    // likewise
    CHECK(fails({2, 2}, -1));    // twice
    CHECK(fails({2, 1}, -1));    // not in order
    CHECK(fails({1, 5}, -1));    // there is none
    CHECK(fails({-1}, -1));      // likewise
    CHECK(fails({1, 2, 4}, 0));  // the last one is of host 0
    CHECK(fails({}, 5));
    CHECK(fails({}, -2));
    CHECK(!c.has_pending());
  }
}

}  // namespace
}  // namespace hvd
