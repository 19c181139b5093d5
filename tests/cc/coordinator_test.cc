// The coordinator alone: pairing, and every kind of disagreement, without a
// thread or a clock.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {
namespace {

using Ranks = std::vector<int32_t>;
using namespace std::chrono_literals;

VOICES_TEST_CASE("a request runs when all ranks have come") {
  Negotiation c(voices, 3);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(0, ACall("b"), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("b"), kStart));
  REQUIRE_OK(c.OnMessage(1, ACall("b"), kStart));
  std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 1);
  const auto& items = std::get<Execution>(responses[0]).items;
  REQUIRE(items.size() == 1);
  CHECK(items[0].name == "b");
  CHECK(items[0].new_id == 1);
  CHECK(c.has_pending());
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  REQUIRE_OK(c.OnMessage(2, ACall("a"), kStart));
  CHECK(First<Execution>(&c).items[0].name == "a");
  CHECK(!c.has_pending());
}

// If rank 1 asks for something else, the Mismatch holds both values, the ranks
// and the name.
void TestMismatch(const std::function<void(RequestParams*)>& change,
                  const std::string& first, const std::string& second) {
  for (Voices voices : kAllVoices) {
    CAPTURE(voices);
    Negotiation c(voices, 3);
    RankMessage message = ACall("layer/kernel");
    REQUIRE_OK(c.OnMessage(0, message, kStart));
    REQUIRE_OK(c.OnMessage(2, message, kStart));
    change(&message.params);
    REQUIRE_OK(c.OnMessage(1, message, kStart));
    const std::vector<Response> responses = c.TakeResponses();
    REQUIRE(responses.size() == 1);
    const auto& failure = std::get<Failure>(responses[0]);
    CHECK(failure.name == "layer/kernel");
    const Status& error = failure.error;
    CHECK(error.code() == StatusCode::kMismatch);
    CHECK(Contains(error.message(), first + " on ranks 0 and 2"));
    CHECK(Contains(error.message(), second + " on rank 1"));
    // The name is free again.
    CHECK(!c.has_pending());
    for (int rank = 0; rank < 3; ++rank) {
      REQUIRE_OK(c.OnMessage(rank, ACall("layer/kernel"), kStart));
    }
    First<Execution>(&c);
  }
}

TEST_CASE("a mismatch holds both values, the ranks and the name") {
  TestMismatch([](RequestParams* p) { p->tensors[0].shape = {3}; }, "[2]",
               "[3]");
  TestMismatch([](RequestParams* p) { p->tensors[0].shape = {2, 1}; }, "[2]",
               "[2, 1]");
  TestMismatch([](RequestParams* p) { p->tensors[0].dtype = DataType::kInt32; },
               "float32", "int32");
  TestMismatch([](RequestParams* p) { p->op = ReduceOp::kMax; }, "Sum", "Max");
  TestMismatch([](RequestParams* p) { p->root_rank = 2; }, "root_rank=0",
               "root_rank=2");
  TestMismatch([](RequestParams* p) { p->prescale = 0.1; }, "1", "0.1");
  TestMismatch([](RequestParams* p) { p->postscale = 0.25; }, "1", "0.25");
  TestMismatch([](RequestParams* p) { p->wire_format = WireFormat::kInt8; },
               "none", "int8");
  TestMismatch([](RequestParams* p) { p->kind = CollectiveKind::kBroadcast; },
               "allreduce", "broadcast");
  TestMismatch([](RequestParams* p) { p->tensors.push_back(p->tensors[0]); },
               "1 tensor", "2 tensors");
}

// A request that all ranks agree on but that is invalid is an error on all.
void TestInvalid(const std::function<void(RequestParams*)>& change,
                 const std::string& text) {
  for (Voices voices : kAllVoices) {
    CAPTURE(voices);
    Negotiation c(voices, 2);
    RankMessage message = ACall("a");
    change(&message.params);
    for (int rank : {0, 1}) REQUIRE_OK(c.OnMessage(rank, message, kStart));
    const Status error = First<Failure>(&c).error;
    CHECK(error.code() == StatusCode::kInvalidArgument);
    CHECK(Contains(error.message(), text));
  }
}

TEST_CASE("what no rank may ask for is an error on all") {
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kBroadcast;
        p->root_rank = 2;
      },
      "`root_rank` must be in [0, 2). Received: root_rank=2");
  TestInvalid([](RequestParams* p) { p->tensors[0].dtype = DataType::kBool; },
              "bool");
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kAllgather;
        p->tensors[0].shape = {};
      },
      "a scalar");
  TestInvalid([](RequestParams* p) { p->prescale = INFINITY; }, "finite");
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kReducescatter;
        p->wire_format = WireFormat::kInt8;
      },
      "a reducescatter with int8");
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kReducescatter;
        p->tensors[0].shape = {};
      },
      "a reducescatter needs tensors of at least one dimension");
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kReducescatter;
        p->op = ReduceOp::kAdasum;
      },
      "Adasum is for allreduce only. Received: a reducescatter");
  TestInvalid(
      [](RequestParams* p) {
        p->op = ReduceOp::kAdasum;
        p->tensors[0].dtype = DataType::kInt32;
      },
      "Adasum");
  // In a group, the error names the member that is wrong.
  TestInvalid(
      [](RequestParams* p) { p->tensors.push_back({DataType::kBool, {2}}); },
      "tensor 1: ");
  TestInvalid(
      [](RequestParams* p) {
        p->kind = CollectiveKind::kAllgather;
        p->average = true;
        p->tensors[0].dtype = DataType::kBool;
      },
      "bool");
}

// Rank 1 wants equally many rows from all, so their numbers are compared.
void TestEqualRows(CollectiveKind kind) {
  for (Voices voices : kAllVoices) {
    CAPTURE(voices);
    for (int64_t rows : {2, 3}) {
      Negotiation c(voices, 2);
      RankMessage message = ACall("rows", {2, 5});
      message.params.kind = kind;
      REQUIRE_OK(c.OnMessage(0, message, kStart));
      message.params.equal_rows = true;
      message.params.tensors[0].shape = {rows, 5};
      REQUIRE_OK(c.OnMessage(1, message, kStart));
      const std::vector<Response> responses = c.TakeResponses();
      REQUIRE(responses.size() == 1);
      const bool agree = rows == 2;
      CHECK(std::holds_alternative<Execution>(responses[0]) == agree);
      if (agree) continue;
      const Status& error = std::get<Failure>(responses[0]).error;
      CHECK(error.code() == StatusCode::kMismatch);
      CHECK(Contains(error.message(),
                     "the shape: [2, 5] on rank 0; [3, 5] on rank 1"));
    }
  }
}

VOICES_TEST_CASE("messages name global ranks") {
  Negotiation c(voices, 3, SetOptions());
  RankMessage message = ACall("a");
  message.params.process_set_id = 1;
  REQUIRE_OK(c.OnMessage(0, message, kStart));
  REQUIRE_OK(c.OnMessage(2, message, kStart));
  CHECK(
      c.CheckStalls(After(10))[0] ==
      Advised(
          "'a' (process set 1): ranks 3 and 8 wait, rank 5 has not come for 10 "
          "s"));
  message.params.op = ReduceOp::kMax;
  REQUIRE_OK(c.OnMessage(1, message, kStart));
  for (const Response& response : c.TakeResponses()) {
    if (std::holds_alternative<Query>(response)) continue;
    CHECK(std::get<Failure>(response).error.message() ==
          "ranks disagree on the reduce op: Sum on ranks 3 and 8; Max on rank "
          "5");
  }
  message = ACall("b");
  message.params.process_set_id = 1;
  message.params.kind = CollectiveKind::kBroadcast;
  message.params.root_rank = 8;
  for (int rank : {0, 1, 2}) REQUIRE_OK(c.OnMessage(rank, message, kStart));
  First<Execution>(&c);
  message.params.root_rank = 1;
  for (int rank : {0, 1, 2}) REQUIRE_OK(c.OnMessage(rank, message, kStart));
  CHECK(First<Failure>(&c).error.message() ==
        "`root_rank` must be one of ranks 3, 5, 8 (process set 1). Received: "
        "root_rank=1");
}

RankMessage AnAlltoall(int64_t num_rows, std::vector<int64_t> splits) {
  RankMessage message = ACall("a", {num_rows, 3});
  message.params.kind = CollectiveKind::kAlltoall;
  message.params.splits = std::move(splits);
  return message;
}

// The other ranks send a valid request.
void TestBadAlltoall(const RankMessage& message, const std::string& text) {
  for (Voices voices : kAllVoices) {
    CAPTURE(voices);
    Negotiation c(voices, 3, SetOptions());
    for (int rank : {0, 2}) {
      REQUIRE_OK(c.OnMessage(rank, AnAlltoall(6, {}), kStart));
    }
    REQUIRE_OK(c.OnMessage(1, message, kStart));
    const Failure failure = First<Failure>(&c);
    CHECK(!failure.error.ok());
    CHECK(failure.ranks.empty());
    CHECK(Contains(failure.error.message(), text));
  }
}

VOICES_TEST_CASE("alltoall checks the splits of each rank") {
  Negotiation c(voices, 3, SetOptions());
  for (int round = 0; round < 2; ++round) {
    REQUIRE_OK(c.OnMessage(0, AnAlltoall(6, {}), kStart));
    REQUIRE_OK(c.OnMessage(1, AnAlltoall(5, {0, 4, 1}), kStart));
    REQUIRE_OK(c.OnMessage(2, AnAlltoall(0, {0, 0, 0}), kStart));
    const ResponseItem item = First<Execution>(&c).items[0];
    CHECK(item.rows ==
          std::vector<std::vector<int64_t>>{{2, 2, 2}, {0, 4, 1}, {0, 0, 0}});
  }
  TestBadAlltoall(AnAlltoall(5, {}), "shape=[5, 3] on rank 5");
  TestBadAlltoall(AnAlltoall(6, {3, 3}), "splits=[3, 3], shape=[6, 3] on rank");
  TestBadAlltoall(AnAlltoall(6, {3, 3, 1}), "splits=[3, 3, 1]");
  TestBadAlltoall(AnAlltoall(6, {3, 1, 1}), "splits=[3, 1, 1]");
  TestBadAlltoall(AnAlltoall(6, {7, -1, 0}), "splits=[7, -1, 0]");
  TestBadAlltoall(AnAlltoall(6, {INT64_MAX, INT64_MAX, 8}), "on rank 5");
  RankMessage other = AnAlltoall(6, {});
  other.params.tensors[0].shape = {6, 4};
  TestBadAlltoall(other, "[*, 3] on ranks 3 and 8; [*, 4] on rank 5");
  other.params.tensors[0].shape = {};
  TestBadAlltoall(other, "ranks disagree on the shape");
  other = AnAlltoall(6, {});
  other.params.tensors[0].dtype = DataType::kInt8;
  TestBadAlltoall(other, "int8 on rank 5");
}

VOICES_TEST_CASE("a barrier waits for all ranks") {
  Negotiation c(voices, 2);
  RankMessage message = ACall("b");
  message.params.kind = CollectiveKind::kBarrier;
  message.params.tensors.clear();
  REQUIRE_OK(c.OnMessage(0, message, kStart));
  CHECK(c.TakeResponses().empty());
  REQUIRE_OK(c.OnMessage(1, message, kStart));
  CHECK(First<Execution>(&c).items[0].name == "b");
}

VOICES_TEST_CASE("allgather takes any first dimension") {
  Negotiation c(voices, 2);
  RankMessage message = ACall("g", {2, 3});
  message.params.kind = CollectiveKind::kAllgather;
  REQUIRE_OK(c.OnMessage(0, message, kStart));
  message.params.tensors[0].shape = {5, 3};
  REQUIRE_OK(c.OnMessage(1, message, kStart));
  const ResponseItem item = First<Execution>(&c).items[0];
  CHECK(item.rows == std::vector<std::vector<int64_t>>{{2, 5}});
}

RankMessage In(TrainingStep step, RankMessage message) {
  message.step = step;
  return message;
}

// As Python tells a step of the first `fit`.
TrainingStep InStep(TrainingStep number) { return 2 * number; }

// Rank 1 has skipped the update of step 7. Its next one must not pair with it.
VOICES_TEST_CASE("gradients of different steps fail on all ranks") {
  Negotiation c(voices, 3);
  const RankMessage bucket = ACall("adam/bucket_0");
  for (uint32_t id = 0; id < 2; ++id) {  // told in full, then by an id
    const RankMessage message = id == 0 ? bucket : Ready({id});
    for (int rank : {0, 1, 2}) {
      REQUIRE_OK(c.OnMessage(rank, In(InStep(6 + id), message), kStart));
    }
    First<Execution>(&c);
    REQUIRE_OK(c.OnMessage(0, In(InStep(7 + id), Ready({1})), kStart));
    REQUIRE_OK(c.OnMessage(1, In(InStep(8 + id), Ready({1})), kStart));
    REQUIRE_OK(c.OnMessage(2, In(InStep(7 + id), Ready({1})), kStart));
    const std::vector<Response> responses = c.TakeResponses();
    REQUIRE(responses.size() == 1);
    const Status& error = std::get<Failure>(responses[0]).error;
    CHECK(error.code() == StatusCode::kMismatch);
    const std::string first = std::to_string(7 + id);
    CHECK(Contains(error.message(), "step " + first +
                                        " on ranks 0 and 2; step " +
                                        std::to_string(8 + id) + " on rank 1"));
  }
}

// Those that know no step, have joined or reduce no gradients are at no fault.
VOICES_TEST_CASE("steps are compared where they are known, for gradients") {
  Negotiation c(voices, 3);
  const auto runs = [&](const std::string& name, TrainingStep of_rank_1) {
    for (int rank : {0, 1, 2}) {
      const TrainingStep step = rank == 1 ? of_rank_1 : 7;
      REQUIRE_OK(c.OnMessage(rank, In(step, ACall(name)), kStart));
    }
    First<Execution>(&c);
  };
  runs("adam/bucket_0", 7);
  runs("adam/bucket_0", 0);
  runs("metrics", 8);
  RankMessage join;
  join.type = RankMessage::Type::kJoin;
  REQUIRE_OK(c.OnMessage(1, join, kStart));
  for (int rank : {0, 2}) {
    REQUIRE_OK(c.OnMessage(rank, In(9, ACall("adam/bucket_0")), kStart));
  }
  First<Execution>(&c);
}

// Rank 1 has skipped an update, and its next call is another one.
VOICES_TEST_CASE("a skipped update fails all that waits for it") {
  for (const TrainingStep next : {InStep(7) + 1, InStep(8)}) {
    for (const bool is_first : {false, true}) {  // that rank
      Negotiation c(voices, 3);
      const auto go_on = [&] {
        REQUIRE_OK(c.OnMessage(1, In(next, ACall("metrics")), kStart));
      };
      if (is_first) go_on();
      for (int rank : {0, 2}) {
        const RankMessage bucket = ACall("adam/bucket_0");
        REQUIRE_OK(c.OnMessage(rank, In(InStep(7), bucket), kStart));
      }
      if (!is_first) go_on();
      CHECK(c.CheckStalls(kStart + 100ms).empty());
      CHECK(c.TakeResponses().empty());
      CHECK(c.CheckStalls(kStart + 1s).empty());
      const std::vector<Response> responses = c.TakeResponses();
      REQUIRE(responses.size() == 2);
      for (const Response& response : responses) {
        const auto& failure = std::get<Failure>(response);
        const bool is_bucket = failure.name == "adam/bucket_0";
        CHECK(failure.ranks == (is_bucket ? Ranks{0, 2} : Ranks{1}));
        CHECK(failure.error.code() == StatusCode::kMismatch);
        CHECK(Contains(failure.error.message(),
                       "step 7 on ranks 0 and 2; " + ToString(next) +
                           " on rank 1. All ranks must update"));
      }
      // Nobody will come for them: the names are free.
      for (const char* name : {"adam/bucket_0", "metrics"}) {
        for (int rank : {0, 1, 2}) {
          REQUIRE_OK(c.OnMessage(rank, ACall(name), kStart));
        }
        First<Execution>(&c);
      }
    }
  }
}

VOICES_TEST_CASE("calls that cross without a skipped update go on") {
  const auto goes_on = [&](TrainingStep of_bucket, TrainingStep of_other,
                           bool has_come = false) {
    Negotiation c(voices, 3);
    REQUIRE_OK(c.OnMessage(0, In(of_bucket, ACall("adam/bucket_0")), kStart));
    REQUIRE_OK(c.OnMessage(1, In(of_other, ACall("saved")), kStart));
    if (has_come) {
      REQUIRE_OK(c.OnMessage(0, In(of_other, ACall("saved")), kStart));
    }
    c.CheckStalls(kStart + 1s);
    return c.TakeResponses().empty();
  };
  CHECK_FALSE(goes_on(InStep(7), InStep(8)));
  CHECK(goes_on(InStep(7), InStep(7)));  // a thread saves
  CHECK(goes_on(InStep(7), InStep(6)));  // likewise, and the rank is late
  CHECK(goes_on(InStep(7), 0));          // it may be in another loop
  CHECK(goes_on(0, InStep(8)));          // likewise
  const TrainingStep of_next_fit = TrainingStep{1} << 32;
  CHECK(goes_on(InStep(7), of_next_fit + InStep(8)));
  CHECK(goes_on(InStep(7), InStep(8), /*has_come=*/true));  // not stuck
}

VOICES_TEST_CASE("a name submitted twice fails on all ranks") {
  Negotiation c(voices, 2);
  REQUIRE_OK(c.OnMessage(0, ACall("a"), kStart));
  RankMessage again;
  again.type = RankMessage::Type::kDuplicate;
  again.name = "a";
  REQUIRE_OK(c.OnMessage(0, again, kStart));
  CHECK(c.TakeResponses().empty());
  REQUIRE_OK(c.OnMessage(1, ACall("a"), kStart));
  const Status error = First<Failure>(&c).error;
  CHECK(error.code() == StatusCode::kInvalidArgument);
  CHECK(Contains(error.message(), "submitted twice by rank 0"));
}

// No rank of ours does so.
TEST_CASE("a failed call of a rank that has come already fails on all ranks") {
  for (bool is_known : {false, true}) {
    CAPTURE(is_known);
    Coordinator c(2, CoordinatorOptions());
    const auto come = [&c] {
      for (int rank : {0, 1}) CHECK_OK(c.OnMessage(rank, ACall("a"), kStart));
    };
    if (is_known) {
      come();
      First<Execution>(&c);
    }
    come();
    RankMessage again = ACall("a");
    again.params.failure = Status::InvalidArgument("bad");
    REQUIRE_OK(c.OnMessage(0, again, kStart));
    const Status error = First<Failure>(&c).error;
    CHECK(Contains(error.message(), "submitted twice by rank 0"));
    CHECK(!c.has_pending());
    come();
    First<Execution>(&c);
  }
}

VOICES_TEST_CASE(
    "small requests of equal parameters fuse up to the threshold") {
  CoordinatorOptions options;
  options.fusion_threshold_bytes = 100;
  Negotiation c(voices, 1, options);
  REQUIRE_OK(c.OnMessage(0, ACall("a", {10}), kStart));
  REQUIRE_OK(c.OnMessage(0, ACall("b", {20}), kStart));  // 80: does not fit
  REQUIRE_OK(c.OnMessage(0, ACall("c", {10}), kStart));  // joins a
  RankMessage other = ACall("d", {1});
  other.params.op = ReduceOp::kMax;
  REQUIRE_OK(c.OnMessage(0, other, kStart));
  RankMessage packed = ACall("e", {1});
  packed.params.wire_format = WireFormat::kInt8;
  REQUIRE_OK(c.OnMessage(0, packed, kStart));
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 4);
  const auto items = [&](size_t i) -> const std::vector<ResponseItem>& {
    return std::get<Execution>(responses[i]).items;
  };
  REQUIRE(items(0).size() == 2);
  CHECK(items(0)[1].name == "c");
  CHECK(items(1)[0].name == "b");
  CHECK(items(2)[0].name == "d");
  CHECK(items(3)[0].name == "e");
}

VOICES_TEST_CASE("only some kinds fuse") {
  for (CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter,
        CollectiveKind::kBroadcast, CollectiveKind::kAllgather,
        CollectiveKind::kAlltoall, CollectiveKind::kBarrier}) {
    Negotiation c(voices, 1);
    for (const char* name : {"a", "b"}) {
      RankMessage message = ACall(name);
      message.params.kind = kind;
      if (kind == CollectiveKind::kBarrier) message.params.tensors.clear();
      REQUIRE_OK(c.OnMessage(0, message, kStart));
    }
    const bool fuses = kind == CollectiveKind::kAllreduce ||
                       kind == CollectiveKind::kReducescatter ||
                       kind == CollectiveKind::kBroadcast;
    REQUIRE(c.TakeResponses().size() == (fuses ? 1 : 2));
  }
  // Nor do groups of several dtypes; each stays one item.
  Negotiation c(voices, 1);
  for (const char* name : {"a", "b"}) {
    RankMessage message = ACall(name);
    message.params.tensors.push_back({DataType::kInt32, {2}});
    REQUIRE_OK(c.OnMessage(0, message, kStart));
  }
  const std::vector<Response> responses = c.TakeResponses();
  REQUIRE(responses.size() == 2);
  REQUIRE(std::get<Execution>(responses[0]).items.size() == 1);
}

VOICES_TEST_CASE("groups without tensors do not fuse") {
  Negotiation c(voices, 1);
  for (const char* name : {"a", "b"}) {
    RankMessage message = ACall(name);
    message.params.tensors.clear();
    REQUIRE_OK(c.OnMessage(0, message, kStart));
  }
  CHECK(c.TakeResponses().size() == 2);
}

TEST_CASE("equal_rows holds for all ranks if one asks for it") {
  TestEqualRows(CollectiveKind::kAllgather);
  TestEqualRows(CollectiveKind::kAlltoall);
}

}  // namespace
}  // namespace hvd
