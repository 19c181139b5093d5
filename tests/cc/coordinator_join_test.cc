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

RankMessage Ready(uint32_t id) {
  RankMessage message;
  message.type = RankMessage::Type::kReady;
  AppendId(id, &message.ids);
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

// One response of `type`.
Response Only(Coordinator* c, Response::Type type) {
  const std::vector<Response> responses = c->TakeResponses();
  CHECK(responses.size() == 1 && responses[0].type == type);
  return responses[0];
}

Response Executes(Coordinator* c) { return Only(c, Response::Type::kExecute); }

void TestJoinedRanksAreNotWaitedFor() {
  Coordinator c(3, Options());
  for (int round = 0; round < 2; ++round) {
    const std::string name = "a" + std::to_string(round);
    CHECK_OK(c.OnMessage(0, ACall(name), kStart));
    CHECK_OK(c.OnMessage(1, Join(), kStart));
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(2, ACall(name), kStart));
    Response response = Executes(&c);
    CHECK(response.divisor == 3 && response.items[0].params != nullptr);
    CHECK(*response.items[0].params == ACall(name).params);
    const uint32_t id = response.items[0].new_id;
    // By its id: the rank that has joined has been told what it means.
    for (int rank : {0, 2}) CHECK_OK(c.OnMessage(rank, Ready(id), kStart));
    response = Executes(&c);
    CHECK(response.items[0].cached_id == id);
    CHECK(response.divisor == 3);
    // The last but one to join lets what waits for it run.
    CHECK_OK(c.OnMessage(2, ACall("b" + name), kStart));
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(0, Join(), kStart));
    CHECK(Executes(&c).items[0].name == "b" + name);
    CHECK_OK(c.OnMessage(2, Join(), kStart));
    CHECK(Only(&c, Response::Type::kJoined).last_rank == 6);
    CHECK(!c.has_pending());
    // As before.
    for (int rank : {0, 2}) CHECK_OK(c.OnMessage(rank, Ready(id), kStart));
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(1, Ready(id), kStart));
    CHECK(Executes(&c).divisor == 0);
  }
}

// A request of a rank that joins right after it counts.
void TestARequestBeforeJoinCounts() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(1, ACall("a"), kStart));
  CHECK_OK(c.OnMessage(1, Join(/*average_over_active=*/true), kStart));
  CHECK_OK(c.OnMessage(0, ACall("a"), kStart));
  CHECK_OK(c.OnMessage(2, Join(true), kStart));
  const Response response = Executes(&c);
  CHECK(response.divisor == 2);  // ranks 0 and 1
  CHECK_OK(c.OnMessage(0, ACall("b"), kStart));
  CHECK(Executes(&c).divisor == 1);
}

// Averages of different divisors do not go together.
void TestDivisorsDoNotFuse() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(1, ACall("a"), kStart));
  for (int rank : {1, 2}) CHECK_OK(c.OnMessage(rank, Join(true), kStart));
  for (const char* name : {"a", "b", "c"}) {
    CHECK_OK(c.OnMessage(0, ACall(name), kStart));
  }
  const std::vector<Response> responses = c.TakeResponses();
  CHECK(responses.size() == 2);
  CHECK(responses[0].divisor == 2 && responses[0].items.size() == 1);
  CHECK(responses[1].divisor == 1 && responses[1].items.size() == 2);
}

void TestOtherKindsFail() {
  for (CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
        CollectiveKind::kAlltoall, CollectiveKind::kReducescatter,
        CollectiveKind::kBarrier}) {
    Coordinator c(3, Options());
    RankMessage message = ACallOf("x", kind);
    message.params.root_rank = 4;
    if (kind == CollectiveKind::kAlltoall) {
      message.params.tensors[0].shape = {3};
    }
    for (int rank : {0, 1, 2}) CHECK_OK(c.OnMessage(rank, message, kStart));
    const uint32_t id = Executes(&c).items[0].new_id;
    const std::string what =
        "ranks 1 and 6 have joined; from then on only allreduces can run. "
        "Received: " +
        std::string(CollectiveKindName(kind)) + " on rank 4";
    for (const RankMessage& again : {message, Ready(id)}) {
      CHECK_OK(c.OnMessage(1, again, kStart));
      CHECK_OK(c.OnMessage(0, Join(), kStart));
      CHECK_OK(c.OnMessage(2, Join(), kStart));
      const Response error = Only(&c, Response::Type::kError);
      CHECK(error.error.code() == StatusCode::kMismatch);
      CHECK(error.error.message() == what);
      CHECK_OK(c.OnMessage(1, Join(), kStart));
      CHECK(Only(&c, Response::Type::kJoined).last_rank == 4);
    }
  }
}

void TestMismatchAmongTheOthers() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(0, Join(), kStart));
  RankMessage message = ACall("a");
  CHECK_OK(c.OnMessage(1, message, kStart));
  message.params.op = ReduceOp::kMin;
  CHECK_OK(c.OnMessage(2, message, kStart));
  CHECK(Only(&c, Response::Type::kError).error.message() ==
        "ranks disagree on the reduce op: Sum on rank 4; Min on rank 6");
  message.params.tensors[0].dtype = DataType::kBool;
  message.params.op = ReduceOp::kSum;
  for (int rank : {1, 2}) CHECK_OK(c.OnMessage(rank, message, kStart));
  CHECK(Only(&c, Response::Type::kError).error.code() ==
        StatusCode::kInvalidArgument);
}

void TestRanksMustAgreeOnTheAverage() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(0, Join(true), kStart));
  CHECK_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK_OK(c.OnMessage(1, Join(false), kStart));
  const std::string text =
      "ranks disagree on the average: average_over_active=true on rank 1; "
      "average_over_active=false on rank 4";
  Response response = Only(&c, Response::Type::kJoined);
  CHECK(response.error.code() == StatusCode::kMismatch);
  CHECK(response.error.message() == text);
  CHECK((response.ranks == std::vector<int32_t>{0, 1}));
  // Nobody has joined any more; the last rank gets the same error.
  for (int rank : {0, 1}) CHECK_OK(c.OnMessage(rank, ACall("a"), kStart));
  CHECK(Executes(&c).divisor == 0);
  CHECK_OK(c.OnMessage(2, Join(false), kStart));
  response = Only(&c, Response::Type::kJoined);
  CHECK(response.error.message() == text);
  CHECK((response.ranks == std::vector<int32_t>{2}));
  for (int rank : {2, 0, 1}) {
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(rank, Join(true), kStart));
  }
  CHECK(Only(&c, Response::Type::kJoined).last_rank == 4);
}

void TestStallsBlameNobodyWhoHasJoined() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(0, Join(), kStart));
  CHECK_OK(c.OnMessage(1, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(10))[0] ==
        "'a': rank 4 waits, rank 6 has not come for 10 s");
  CHECK((Only(&c, Response::Type::kQuery).ranks == std::vector<int32_t>{1, 2}));
  c.CheckStalls(After(60));
  CHECK(Only(&c, Response::Type::kError).error.code() == StatusCode::kStalled);
  // Who joins instead of coming late owes nothing any more.
  for (int rank : {2, 1}) CHECK_OK(c.OnMessage(rank, Join(), kStart));
  CHECK(Only(&c, Response::Type::kJoined).last_rank == 4);
  for (int rank : {0, 1, 2}) {
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(rank, ACall("a"), kStart));
  }
  CHECK(Executes(&c).items[0].name == "a");
}

// Joined ranks see evictions in the same order as the others.
void TestEvictionsGoOn() {
  CoordinatorOptions options;
  options.cache_capacity = 8;
  Coordinator c(2, options);
  CHECK_OK(c.OnMessage(1, Join(), kStart));
  std::set<uint32_t> known;
  for (int i = 0; i < 50; ++i) {
    CHECK_OK(c.OnMessage(0, ACall("t" + std::to_string(i)), kStart));
    for (const Response& response : c.TakeResponses()) {
      for (const ResponseItem& item : response.items) {
        CHECK(item.params != nullptr && known.insert(item.new_id).second);
      }
      for (const IdRun& run : response.ids) {
        for (uint32_t k = 0; k < run.count; ++k) {
          CHECK(known.erase(run.first + k) == 1);
        }
      }
    }
  }
  CHECK(!known.empty() && known.size() <= 8);
}

void TestCallInAnotherProcessSet() {
  Coordinator c(3, Options());
  CHECK_OK(c.OnMessage(0, ACall("a"), kStart));
  c.CheckStalls(After(10));
  const Response query = Only(&c, Response::Type::kQuery);
  CHECK(query.items[0].name == "a");
  CHECK((query.ranks == std::vector<int32_t>{0, 1, 2}));
  CHECK((query.waiting == std::vector<int32_t>{1}));
  CHECK_OK(c.OnMessage(0, Elsewhere("a", -1), kStart));
  CHECK_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
  CHECK(c.TakeResponses().empty());  // rank 2 has not answered
  CHECK_OK(c.OnMessage(2, Elsewhere("a", -1), kStart));
  const Response error = Only(&c, Response::Type::kError);
  CHECK(error.error.code() == StatusCode::kMismatch && error.is_misplaced);
  CHECK(error.error.message() ==
        "ranks disagree on the process set: process set 0 on rank 1; process "
        "set 3 on rank 4");
  CHECK((error.ranks == std::vector<int32_t>{0}));
  CHECK(!c.has_pending());
  // Rank 2 comes late for that call, rank 1 does not come for it.
  CHECK_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK(Only(&c, Response::Type::kError).error.code() == StatusCode::kMismatch);
  for (int rank : {0, 1, 2}) {
    CHECK(c.TakeResponses().empty());
    CHECK_OK(c.OnMessage(rank, ACall("a"), kStart));
  }
  CHECK(Executes(&c).items[0].name == "a");
}

// They are only late: nothing fails, and they are asked again later.
void TestNobodyIsElsewhere() {
  CoordinatorOptions options = Options();
  options.stall_warning_seconds = 0;
  Coordinator c(3, options);
  CHECK_OK(c.OnMessage(0, ACall("a"), kStart));
  CHECK(c.CheckStalls(After(9.9)).empty() && c.TakeResponses().empty());
  for (double seconds : {10.0, 20.0}) {
    CHECK(c.CheckStalls(After(seconds)).empty());
    Only(&c, Response::Type::kQuery);
    for (int rank : {0, 1, 2}) {
      CHECK_OK(c.OnMessage(rank, Elsewhere("a", -1), kStart));
    }
    CHECK(c.TakeResponses().empty());
  }
  // Rank 0 calls in set 3 too, or cannot tell: rank 1 may come after that.
  for (int own : {3, -2}) {
    CHECK(c.CheckStalls(After(own == 3 ? 30 : 40)).empty());
    Only(&c, Response::Type::kQuery);
    CHECK_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
    CHECK_OK(c.OnMessage(2, Elsewhere("a", -1), kStart));
    CHECK_OK(c.OnMessage(0, Elsewhere("a", own), kStart));
    CHECK(c.TakeResponses().empty());
  }
  // It came before its answer did, which says of another call.
  CHECK(c.CheckStalls(After(50)).empty());
  Only(&c, Response::Type::kQuery);
  CHECK_OK(c.OnMessage(1, ACall("a"), kStart));
  CHECK_OK(c.OnMessage(1, Elsewhere("a", 3), kStart));
  CHECK_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK_OK(c.OnMessage(2, Elsewhere("a", 3), kStart));
  Executes(&c);
  CHECK_OK(c.OnMessage(2, Elsewhere("a", 3), kStart));
  CHECK_OK(c.OnMessage(2, Elsewhere("unknown", 3), kStart));
  CHECK(c.TakeResponses().empty());
}

}  // namespace
}  // namespace hvd

int main() {
  hvd::TestJoinedRanksAreNotWaitedFor();
  hvd::TestARequestBeforeJoinCounts();
  hvd::TestDivisorsDoNotFuse();
  hvd::TestOtherKindsFail();
  hvd::TestMismatchAmongTheOthers();
  hvd::TestRanksMustAgreeOnTheAverage();
  hvd::TestStallsBlameNobodyWhoHasJoined();
  hvd::TestEvictionsGoOn();
  hvd::TestCallInAnotherProcessSet();
  hvd::TestNobodyIsElsewhere();
  std::puts("coordinator_join_test passed");
  return 0;
}
