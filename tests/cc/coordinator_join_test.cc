// The coordinator alone: ranks that have joined, and ranks that call in
// another process set.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {
namespace {

RankMessage ACallOf(const std::string& name, CollectiveKind kind) {
  RankMessage message = ACall(name);
  message.params.kind = kind;
  if (kind == CollectiveKind::kBarrier) message.params.tensors.clear();
  return message;
}

RankMessage Join(bool average_over_active = false) {
  RankMessage message;
  message.type = RankMessage::Type::kJoin;
  message.average_over_active = average_over_active;
  return message;
}

RankMessage Elsewhere(const std::string& name, int process_set_id) {
  RankMessage message;
  message.type = RankMessage::Type::kElsewhere;
  message.name = name;
  message.process_set_id = process_set_id;
  return message;
}

// Global ranks 1, 4 and 6.
CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.global_ranks = {1, 4, 6};
  return options;
}

// One response of this kind.
template <typename Kind>
Kind Only(Negotiation* c) {
  const std::vector<Response> responses = c->TakeResponses();
  REQUIRE(responses.size() == 1);
  return std::get<Kind>(responses[0]);
}

VOICES_TEST_CASE("joined ranks are not waited for") {
  Negotiation c(voices, 3, Options());
  for (int round = 0; round < 2; ++round) {
    const std::string name = "a" + std::to_string(round);
    REQUIRE_OK(c.OnMessage(0, ACall(name), kStart));
    REQUIRE_OK(c.OnMessage(1, Join(), kStart));
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(2, ACall(name), kStart));
    Execution run = Only<Execution>(&c);
    CHECK(run.divisor == 3);
    REQUIRE(run.items[0].params != nullptr);
    CHECK(*run.items[0].params == ACall(name).params);
    const uint32_t id = run.items[0].new_id;
    // Send its id: the rank that has joined knows what it means.
    for (int rank : {0, 2}) REQUIRE_OK(c.OnMessage(rank, Ready({id}), kStart));
    run = Only<Execution>(&c);
    CHECK(run.items[0].cached_id == id);
    CHECK(run.divisor == 3);
    // Once the last but one rank has joined, what waited for it runs.
    REQUIRE_OK(c.OnMessage(2, ACall("b" + name), kStart));
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(0, Join(), kStart));
    CHECK(Only<Execution>(&c).items[0].name == "b" + name);
    REQUIRE_OK(c.OnMessage(2, Join(), kStart));
    CHECK(Only<JoinEnd>(&c).last_rank == 6);
    CHECK(!c.has_pending());
    // As before.
    for (int rank : {0, 2}) REQUIRE_OK(c.OnMessage(rank, Ready({id}), kStart));
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(1, Ready({id}), kStart));
    CHECK(Only<Execution>(&c).divisor == 0);
  }
}

VOICES_TEST_CASE("a request before the join counts") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(1, Join(/*average_over_active=*/true), kStart));
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, Join(true), kStart));
  CHECK(Only<Execution>(&c).divisor == 2);  // ranks 0 and 1
  REQUIRE_OK(c.OnMessage(0, ACall("b"), kStart));
  CHECK(Only<Execution>(&c).divisor == 1);
}

VOICES_TEST_CASE("averages of different divisors do not fuse") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  for (int rank : {1, 2}) REQUIRE_OK(c.OnMessage(rank, Join(true), kStart));
  for (const char* name : {"a", "b", "c"}) {
    REQUIRE_OK(c.OnMessage(0, ACall(name), kStart));
  }
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 2);
  CHECK(std::get<Execution>(responses[0]).divisor == 2);
  REQUIRE(std::get<Execution>(responses[0]).items.size() == 1);
  CHECK(std::get<Execution>(responses[1]).divisor == 1);
  REQUIRE(std::get<Execution>(responses[1]).items.size() == 2);
}

VOICES_TEST_CASE("other kinds than allreduce fail once a rank has joined") {
  for (CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
        CollectiveKind::kAlltoall, CollectiveKind::kReducescatter,
        CollectiveKind::kBarrier}) {
    Negotiation c(voices, 3, Options());
    RankMessage message = ACallOf("x", kind);
    message.params.root_rank = 4;
    if (kind == CollectiveKind::kAlltoall) {
      message.params.tensors[0].shape = {3};
    }
    for (int rank : {0, 1, 2}) REQUIRE_OK(c.OnMessage(rank, message, kStart));
    const uint32_t id = Only<Execution>(&c).items[0].new_id;
    const std::string what =
        "ranks 1 and 6 have joined; from then on only allreduces can run. "
        "Received: " +
        std::string(CollectiveKindName(kind)) + " on rank 4";
    for (const RankMessage& again : {message, Ready({id})}) {
      REQUIRE_OK(c.OnMessage(1, again, kStart));
      REQUIRE_OK(c.OnMessage(0, Join(), kStart));
      REQUIRE_OK(c.OnMessage(2, Join(), kStart));
      const Status error = Only<Failure>(&c).error;
      CHECK(error.code() == StatusCode::kMismatch);
      CHECK(error.message() == what);
      REQUIRE_OK(c.OnMessage(1, Join(), kStart));
      CHECK(Only<JoinEnd>(&c).last_rank == 4);
    }
  }
}

VOICES_TEST_CASE("ranks that have not joined may still disagree") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(0, Join(), kStart));
  RankMessage message = ACall("a");
  REQUIRE_OK(c.OnMessage(1, message, kStart));
  message.params.op = ReduceOp::kMin;
  REQUIRE_OK(c.OnMessage(2, message, kStart));
  CHECK(Only<Failure>(&c).error.message() ==
        "ranks disagree on the reduce op: Sum on rank 4; Min on rank 6");
  message.params.tensors[0].dtype = DataType::kBool;
  message.params.op = ReduceOp::kSum;
  for (int rank : {1, 2}) REQUIRE_OK(c.OnMessage(rank, message, kStart));
  CHECK(Only<Failure>(&c).error.code() == StatusCode::kInvalidArgument);
}

VOICES_TEST_CASE("ranks must agree on average_over_active") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(0, Join(true), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(1, Join(false), kStart));
  const std::string text =
      "ranks disagree on the average: average_over_active=true on rank 1; "
      "average_over_active=false on rank 4";
  JoinEnd end = Only<JoinEnd>(&c);
  CHECK(end.error.code() == StatusCode::kMismatch);
  CHECK(end.error.message() == text);
  CHECK(end.ranks == std::vector<int32_t>{0, 1});
  // No join is left; the last rank gets the same error.
  for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, ACall("a"), kStart));
  CHECK(Only<Execution>(&c).divisor == 0);
  REQUIRE_OK(c.OnMessage(2, Join(false), kStart));
  end = Only<JoinEnd>(&c);
  CHECK(end.error.message() == text);
  CHECK(end.ranks == std::vector<int32_t>{2});
  for (int rank : {2, 0, 1}) {
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(rank, Join(true), kStart));
  }
  CHECK(Only<JoinEnd>(&c).last_rank == 4);
}

VOICES_TEST_CASE("a stall blames nobody who has joined") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(0, Join(), kStart));
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(10))[0] ==
        Advised("'a': rank 4 waits, rank 6 has not come for 10 s"));
  CHECK(Only<Query>(&c).ranks == std::vector<int32_t>{1, 2});
  c.CheckStalls(After(60));
  CHECK(Only<Failure>(&c).error.code() == StatusCode::kStalled);
  // A rank that joins instead of coming late is no longer expected.
  for (int rank : {2, 1}) REQUIRE_OK(c.OnMessage(rank, Join(), kStart));
  CHECK(Only<JoinEnd>(&c).last_rank == 4);
  for (int rank : {0, 1, 2}) {
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(rank, ACall("a"), kStart));
  }
  CHECK(Only<Execution>(&c).items[0].name == "a");
}

VOICES_TEST_CASE("joined ranks see evictions in the order of the others") {
  CoordinatorOptions options;
  options.cache_capacity = 8;
  Negotiation c(voices, 2, options);
  REQUIRE_OK(c.OnMessage(1, Join(), kStart));
  std::set<uint32_t> known;
  for (int i = 0; i < 50; ++i) {
    REQUIRE_OK(c.OnMessage(0, ACall("t" + std::to_string(i)), kStart));
    for (const Response& response : c.TakeResponses()) {
      if (const auto* execution = std::get_if<Execution>(&response)) {
        for (const ResponseItem& item : execution->items) {
          REQUIRE(item.params != nullptr);
          CHECK(known.insert(item.new_id).second);
        }
        continue;
      }
      for (const IdRun& run : std::get<Eviction>(response).ids) {
        for (uint32_t k = 0; k < run.count; ++k) {
          CHECK(known.erase(run.first + k) == 1);
        }
      }
    }
  }
  CHECK(!known.empty());
  CHECK(known.size() <= 8);
}

VOICES_TEST_CASE("a call in another process set is a mismatch") {
  Negotiation c(voices, 3, Options());
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  c.CheckStalls(After(10));
  const Query query = Only<Query>(&c);
  CHECK(query.name == "a");
  CHECK(query.ranks == std::vector<int32_t>{0, 1, 2});
  CHECK(query.waiting == std::vector<int32_t>{1});
  REQUIRE_OK(c.OnMessage(0, Elsewhere("a", -1), kStart));
  REQUIRE_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
  CHECK(c.TakeResponses().empty());  // rank 2 has not answered
  REQUIRE_OK(c.OnMessage(2, Elsewhere("a", -1), kStart));
  const Failure failure = Only<Failure>(&c);
  CHECK(failure.error.code() == StatusCode::kMismatch);
  CHECK(failure.is_misplaced);
  CHECK(failure.error.message() ==
        "ranks disagree on the process set: process set 0 on rank 1; process "
        "set 3 on rank 4");
  CHECK(failure.ranks == std::vector<int32_t>{0});
  CHECK(!c.has_pending());
  // Rank 2 comes late for that call, rank 1 does not come for it.
  REQUIRE_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK(Only<Failure>(&c).error.code() == StatusCode::kMismatch);
  for (int rank : {0, 1, 2}) {
    CHECK(c.TakeResponses().empty());
    REQUIRE_OK(c.OnMessage(rank, ACall("a"), kStart));
  }
  CHECK(Only<Execution>(&c).items[0].name == "a");
}

VOICES_TEST_CASE("ranks that are only late are asked again") {
  CoordinatorOptions options = Options();
  options.stalls.warning_seconds = 0;
  Negotiation c(voices, 3, options);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(9.9)).empty());
  CHECK(c.TakeResponses().empty());
  for (double seconds : {10.0, 20.0}) {
    CHECK(c.CheckStalls(After(seconds)).empty());
    Only<Query>(&c);
    for (int rank : {0, 1, 2}) {
      REQUIRE_OK(c.OnMessage(rank, Elsewhere("a", -1), kStart));
    }
    CHECK(c.TakeResponses().empty());
  }
  // Rank 0 calls in set 3 too, or cannot tell: rank 1 may come after that.
  for (int own : {3, -2}) {
    CHECK(c.CheckStalls(After(own == 3 ? 30 : 40)).empty());
    Only<Query>(&c);
    REQUIRE_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
    REQUIRE_OK(c.OnMessage(2, Elsewhere("a", -1), kStart));
    REQUIRE_OK(c.OnMessage(0, Elsewhere("a", own), kStart));
    CHECK(c.TakeResponses().empty());
  }
  // Rank 1 comes before its answer, which is about another call.
  CHECK(c.CheckStalls(After(50)).empty());
  Only<Query>(&c);
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, Elsewhere("a", 3), kStart));
  Only<Execution>(&c);
  REQUIRE_OK(c.OnMessage(2, Elsewhere("a", 3), kStart));
  REQUIRE_OK(c.OnMessage(2, Elsewhere("unknown", 3), kStart));
  CHECK(c.TakeResponses().empty());
}

}  // namespace
}  // namespace hvd
