// What the coordinator knows of requests that have come before: their ids, and
// when it forgets them.
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {
namespace {

VOICES_TEST_CASE("known requests go by id until all have forgotten it") {
  Negotiation c(voices, 2);
  for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, ACall("a"), kStart));
  CHECK(First<Execution>(&c).items[0].new_id == 1);
  for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, Ready({1}), kStart));
  CHECK(First<Execution>(&c).items[0].cached_id == 1);
  // One rank sends the id, the other another shape: still a mismatch.
  REQUIRE_OK(c.OnMessage(0, Ready({1}), kStart));
  REQUIRE_OK(c.OnMessage(1, ACall("a", {9}), kStart));
  CHECK(First<Failure>(&c).error.code() == StatusCode::kMismatch);
  // Both send another shape: it gets a new id, and the old one is forgotten.
  for (int rank : {0, 1}) {
    REQUIRE_OK(c.OnMessage(rank, ACall("a", {9}), kStart));
  }
  std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 2);
  CHECK(std::get<Execution>(responses[0]).items[0].new_id == 2);
  CHECK(std::get<Eviction>(responses[1]).ids[0].first == 1);
  // Rank 1 may still use the old id until it has seen that.
  REQUIRE_OK(c.OnMessage(1, Ready({1}), kStart));
  REQUIRE_OK(c.OnMessage(0, ACall("a", {2}), kStart));
  CHECK(First<Execution>(&c).items[0].new_id == 3);
  for (int rank : {0, 1}) {
    REQUIRE_OK(
        c.OnMessage(rank, Ids(RankMessage::Type::kForgotten, {1}), kStart));
  }
  CHECK(!c.OnMessage(1, Ready({1}), kStart).ok());
}

// Two ranks know one id. Nothing of a message of 20 million is acted on.
TEST_CASE("no more ids come than are known") {
  for (RankMessage::Type type :
       {RankMessage::Type::kReady, RankMessage::Type::kForgotten}) {
    Coordinator c(2, CoordinatorOptions());
    for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, ACall("a"), kStart));
    REQUIRE(First<Execution>(&c).items[0].new_id == 1);
    RankMessage message;
    message.type = type;
    message.ids = {{1, 20000000}};
    const Status status = c.OnMessage(1, message, kStart);
    CHECK(Contains(status.message(),
                   "rank 1 speaks of 20000000 ids, but only 1 are known"));
    CHECK(!c.has_pending());
  }
}

VOICES_TEST_CASE("a full cache evicts what was used least recently") {
  CoordinatorOptions options;
  options.cache_capacity = 16;
  Negotiation c(voices, 2, options);
  size_t num_evicted = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "t" + std::to_string(i);
    for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, ACall(name), kStart));
    for (const Response& response : c.TakeResponses()) {
      const auto* eviction = std::get_if<Eviction>(&response);
      if (eviction != nullptr) num_evicted += NumIds(eviction->ids);
    }
  }
  CHECK(num_evicted >= 84);
  CHECK(num_evicted < 90);
  // The last one used is kept.
  for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, Ready({100}), kStart));
  CHECK(First<Execution>(&c).items[0].cached_id == 100);
}

}  // namespace
}  // namespace hvd
