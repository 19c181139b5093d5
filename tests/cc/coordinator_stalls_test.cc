// The coordinator alone: ranks that do not come.
#include <string>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"
#include "tf_ops/negotiation/mismatch.h"

namespace hvd {
namespace {

VOICES_TEST_CASE("a stall warns once, asks, then fails the call") {
  Negotiation c(voices, 4);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(9.9)).empty());
  const std::vector<std::string> warnings = c.CheckStalls(After(10.1));
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0] ==
      Advised("'a': ranks 0 and 2 wait, ranks 1 and 3 have not come for 10 s"));
  CHECK(c.CheckStalls(After(19)).empty());  // once
  First<Query>(&c);
  CHECK(c.TakeResponses().empty());
  CHECK(c.CheckStalls(After(60.1)).empty());
  const Status error = First<Failure>(&c).error;
  CHECK(error.code() == StatusCode::kStalled);
  CHECK(Contains(error.message(), "ranks 1 and 3 have not come"));
  CHECK(!c.has_pending());
}

VOICES_TEST_CASE("ranks that wait for different names are told") {
  Negotiation c(voices, 3, SetOptions());
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("b"), After(1)));
  const std::string warning = c.CheckStalls(After(10))[0];
  CHECK(Contains(warning,
                 "'a': rank 3 waits, ranks 5 and 8 have not come for 10 s; "
                 "rank 8 waits for 'b' instead"));
  CHECK(!Contains(warning, "Calls without `name`"));
  REQUIRE(c.CheckStalls(After(60)).size() == 1);
  CHECK(c.CheckStalls(After(61)).empty());
  std::vector<std::string> errors;
  for (const Response& response : c.TakeResponses()) {
    if (std::holds_alternative<Query>(response)) continue;
    errors.push_back(std::get<Failure>(response).error.message());
  }
  REQUIRE(errors.size() == 2);
  CHECK(Contains(errors[0], "within 60 s; rank 8 waits for 'b' instead"));
  CHECK(Contains(errors[1], "within 60 s; rank 3 waits for 'a' instead"));
}

VOICES_TEST_CASE("advice on names is for calls without one") {
  const auto warning = [&](const std::string& name, const std::string& other) {
    Negotiation c(voices, 2);
    REQUIRE_OK(c.OnMessage(0, ACall(name), kStart));
    REQUIRE_OK(c.OnMessage(1, ACall(other), kStart));
    return c.CheckStalls(After(10.1))[0];
  };
  for (const char* name :
       {"allreduce.0", "grouped_allreduce.1", "jax.allgather.call.0",
        "torch.broadcast.2", "HorovodAllreduce_1", "scope/HorovodAllgather"}) {
    CAPTURE(name);
    CHECK(Contains(warning(name, "loss"), "instead. Calls without `name`"));
    CHECK(Contains(warning("loss", name), "instead. Calls without `name`"));
  }
  for (const char* name :
       {"acc", "predict/rows/header", "allreduce", "jax.x"}) {
    CAPTURE(name);
    CHECK(!Contains(warning(name, "loss"), "pass `name`"));
  }
}

VOICES_TEST_CASE("a stalled gradient asks for equally many steps") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ACall("sgd/bucket_0"), kStart));
  CHECK(Contains(c.CheckStalls(After(10.1))[0],
                 "rank 1 has not come for 10 s. Do all ranks run equally many "
                 "steps? Give them equally many batches, as `hvd.shard` does"));
  REQUIRE_OK(c.OnMessage(1, ACall("b"), After(11)));
  c.CheckStalls(After(60.1));
  c.CheckStalls(After(71.1));
  for (const Response& response : c.TakeResponses()) {
    if (std::holds_alternative<Query>(response)) continue;
    const std::string text = std::get<Failure>(response).error.message();
    CHECK(Contains(text, "instead. Do all ranks run"));
    CHECK(!Contains(text, "pass `name`"));
  }
}

// Of ranks 0 and 1: whether the call runs, and the error of each otherwise.
std::vector<std::string> CallTogether(Negotiation* c, const std::string& name,
                                      Clock::time_point now) {
  for (int rank : {0, 1}) REQUIRE_OK(c->OnMessage(rank, ACall(name), now));
  std::vector<std::string> errors;
  for (const Response& response : c->TakeResponses()) {
    const auto* failure = std::get_if<Failure>(&response);
    if (failure == nullptr) continue;
    errors.push_back(RanksToString(failure->ranks) + ": " +
                     failure->error.message());
  }
  return errors;
}

void SkipOnRank1(Negotiation* c, const std::string& name, double seconds) {
  REQUIRE_OK(c->OnMessage(0, ACall(name), After(seconds)));
  c->CheckStalls(After(seconds + 61));
  const Response last = c->TakeResponses().back();
  REQUIRE(std::get<Failure>(last).error.code() == StatusCode::kStalled);
}

VOICES_TEST_CASE("a skipped call is over when all have met in another one") {
  Negotiation c(voices, 2);
  SkipOnRank1(&c, "a", 0);
  SkipOnRank1(&c, "b", 0);
  CHECK(CallTogether(&c, "other", After(62)).empty());
  CHECK(CallTogether(&c, "a", After(63)).empty());
  CHECK(CallTogether(&c, "b", After(64)).empty());
}

VOICES_TEST_CASE("the rank that has skipped may come for that one early") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(1, ACall("other"), After(30)));
  SkipOnRank1(&c, "a", 0);
  REQUIRE_OK(c.OnMessage(0, ACall("other"), After(62)));
  First<Execution>(&c);
  CHECK(CallTogether(&c, "a", After(63)).empty());
}

VOICES_TEST_CASE("a call that began before one was skipped proves nothing") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ACall("long"), After(30)));
  SkipOnRank1(&c, "a", 0);
  REQUIRE_OK(c.OnMessage(1, ACall("long"), After(62)));
  First<Execution>(&c);
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(63)));  // late, or the next one
  CHECK(Contains(First<Failure>(&c).error.message(), "has not come"));
}

VOICES_TEST_CASE("a skipped call costs one more at most") {
  Negotiation c(voices, 2);
  SkipOnRank1(&c, "a", 0);
  // Rank 1 comes for this one; it might be late for the one before.
  const std::vector<std::string> errors = CallTogether(&c, "a", After(62));
  REQUIRE(errors.size() == 1);
  CHECK(Contains(errors[0], "rank 1: rank 0 waits, rank 1 has not come"));
  c.CheckStalls(After(123));
  const Response last = c.TakeResponses().back();
  REQUIRE(std::get<Failure>(last).error.code() == StatusCode::kStalled);
  for (double seconds : {124.0, 125.0}) {
    CHECK(CallTogether(&c, "a", After(seconds)).empty());
  }
}

VOICES_TEST_CASE("a late rank is told, and the next call runs") {
  Negotiation c(voices, 2);
  SkipOnRank1(&c, "a", 0);
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(62)));
  CHECK(Contains(First<Failure>(&c).error.message(), "has not come"));
  CHECK(CallTogether(&c, "a", After(63)).empty());
  SkipOnRank1(&c, "a", 64);
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(126)));
  CHECK(Contains(First<Failure>(&c).error.message(), "has not come"));
}

RankMessage ARefusal(const std::string& name) {
  RankMessage message = ACall(name);
  message.params.failure = Status::InvalidArgument("bad op");
  return message;
}

std::vector<int> RanksOf(const Failure& failure) {
  return {failure.ranks.begin(), failure.ranks.end()};
}

VOICES_TEST_CASE("a rank that cannot take part fails the call at once") {
  Negotiation c(voices, 4);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, ARefusal("a"), After(1)));
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 1);
  const auto& failure = std::get<Failure>(responses[0]);
  CHECK(failure.error.message() == "rank 2 cannot take part: bad op");
  CHECK(RanksOf(failure) == std::vector<int>{0, 2});
  CHECK(!c.has_pending());
  // The others are told when they come, whatever they bring.
  REQUIRE_OK(c.OnMessage(3, ACall("a", {7}), After(2)));
  CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{3});
  REQUIRE_OK(c.OnMessage(1, ARefusal("a"), After(3)));
  CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{1});
  // The name serves again.
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE_OK(c.OnMessage(rank, ACall("a"), After(4)));
  }
  First<Execution>(&c);
}

VOICES_TEST_CASE("each refused call is told to a rank that comes later") {
  Negotiation c(voices, 2);
  for (int call = 0; call < 3; ++call) {
    REQUIRE_OK(c.OnMessage(0, ARefusal("a"), After(call)));
    CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{0});
  }
  REQUIRE_OK(c.OnMessage(0, ACall("a"), After(3)));
  for (int call = 0; call < 3; ++call) {
    REQUIRE_OK(c.OnMessage(1, ACall("a"), After(4 + call)));
    CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{1});
  }
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(8)));
  First<Execution>(&c);
}

VOICES_TEST_CASE("a refused call is not taken for one that a rank skipped") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(60.1)).empty());
  c.TakeResponses();
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(61)));  // it was only late
  const Response late = c.TakeResponses().back();
  CHECK(RanksOf(std::get<Failure>(late)) == std::vector<int>{1});
  REQUIRE_OK(c.OnMessage(0, ARefusal("a"), After(62)));
  c.TakeResponses();
  REQUIRE_OK(c.OnMessage(0, ACall("a"), After(63)));
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(64)));  // its second, not third
  CHECK(
      Contains(First<Failure>(&c).error.message(), "rank 0 cannot take part"));
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(65)));
  First<Execution>(&c);
}

// Ranks 0 and 1 make both calls, rank 1 all at once.
VOICES_TEST_CASE("a refused call is told after a call made before it has met") {
  Negotiation c(voices, 3);
  REQUIRE_OK(c.OnMessage(2, ACall("before"), kStart));
  REQUIRE_OK(c.OnMessage(2, ARefusal("a"), kStart));
  c.TakeResponses();
  REQUIRE_OK(c.OnMessage(0, ACall("before"), After(1)));
  REQUIRE_OK(c.OnMessage(1, ACall("before"), After(1)));
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(1)));
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 2);
  CHECK(RanksOf(std::get<Failure>(responses[0])) == std::vector<int>{1});
  CHECK(std::holds_alternative<Execution>(responses[1]));
  REQUIRE_OK(c.OnMessage(0, ACall("a"), After(2)));
  CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{0});
}

VOICES_TEST_CASE("a rank that joins later does not end a refused call") {
  Negotiation c(voices, 3);
  REQUIRE_OK(c.OnMessage(0, ACall("before"), kStart));
  REQUIRE_OK(c.OnMessage(0, ARefusal("a"), kStart));
  c.TakeResponses();
  REQUIRE_OK(c.OnMessage(1, ACall("before"), After(1)));
  RankMessage join;
  join.type = RankMessage::Type::kJoin;
  REQUIRE_OK(c.OnMessage(2, join, After(2)));
  First<Execution>(&c);
  REQUIRE_OK(c.OnMessage(1, ACall("a"), After(3)));
  CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{1});
}

VOICES_TEST_CASE("ranks that wait for a program that was not built are told") {
  Negotiation c(voices, 4);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(1, ARefusal(kWholeProgram), After(1)));
  CHECK(RanksOf(First<Failure>(&c)) == std::vector<int>{1});
  REQUIRE_OK(c.OnMessage(2, ACall("b"), After(1.1)));
  CHECK(c.CheckStalls(After(1.2)).empty());
  CHECK(c.TakeResponses().empty());
  CHECK(c.CheckStalls(After(2)).empty());
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 2);
  for (const Response& response : responses) {
    CHECK(std::get<Failure>(response).error.message() ==
          "rank 1 could not build its program: bad op");
  }
  // Once.
  REQUIRE_OK(c.OnMessage(0, ACall("c"), After(3)));
  CHECK(c.CheckStalls(After(5)).empty());
  CHECK(c.TakeResponses().empty());
}

VOICES_TEST_CASE("a program that no rank could build stops nothing") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ARefusal(kWholeProgram), kStart));
  REQUIRE_OK(c.OnMessage(1, ARefusal(kWholeProgram), kStart));
  c.TakeResponses();
  REQUIRE_OK(c.OnMessage(0, ACall("a"), After(1)));
  CHECK(c.CheckStalls(After(5)).empty());
  CHECK(c.TakeResponses().empty());
}

VOICES_TEST_CASE("a later meeting ends what a failed program has left") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ARefusal(kWholeProgram), kStart));
  c.TakeResponses();
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(c.OnMessage(rank, ACall("a"), After(1)));
  }
  First<Execution>(&c);
  REQUIRE_OK(c.OnMessage(1, ACall("b"), After(2)));
  CHECK(c.CheckStalls(After(5)).empty());
  CHECK(c.TakeResponses().empty());
}

}  // namespace
}  // namespace hvd
