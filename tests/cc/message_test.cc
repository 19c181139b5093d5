// Control messages: what is written is read; nothing that is cut short or
// garbled is believed.
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/common/codec.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {
namespace {

constexpr MessageLimits kLimits{/*num_ranks=*/8, /*cache_capacity=*/64};

RankMessage ARequest() {
  RankMessage message;
  message.name = "dense/kernel";
  message.params.kind = CollectiveKind::kAllgather;
  message.params.op = ReduceOp::kMax;
  message.params.root_rank = 3;
  message.params.prescale = 0.25;
  message.params.wire_format = WireFormat::kInt4;
  message.params.average = true;
  message.params.equal_rows = true;
  message.params.splits = {4, 0, -1};
  message.params.tensors = {{DataType::kInt64, {2, 0, 5}},
                            {DataType::kBfloat16, {}}};
  return message;
}

Execution AnExecution() {
  Execution execution;
  for (uint32_t id : {4u, 5u, 6u, 9u}) {
    execution.items.emplace_back().cached_id = id;
  }
  ResponseItem& item = execution.items.emplace_back();
  item.name = "new";
  item.new_id = 10;
  item.rows = {{1, 2, 0, 0, 0, 0, 0, 0}, {0, 7, 0, 0, 0, 0, 0, 0}};
  execution.divisor = 3;
  ResponseItem joined = item;
  joined.name = "newer";
  joined.params = std::make_shared<const RequestParams>(ARequest().params);
  joined.host_rows = {{std::vector<int64_t>(8, 3)},
                      {std::vector<int64_t>(8, 5)},
                      /*longest=*/9};
  execution.items.push_back(joined);
  return execution;
}

TEST_CASE("messages of ranks are read as written") {
  std::vector<uint8_t> bytes;
  Encode(ARequest(), &bytes);
  RankMessage ready;
  ready.type = RankMessage::Type::kReady;
  ready.ranks = {2, 4};
  ready.last_rank = 2;
  ready.step = 70000;
  for (uint32_t id : {1u, 2u, 3u, 7u}) AppendId(id, &ready.ids);
  REQUIRE(ready.ids.size() == 2);
  Encode(ready, &bytes);

  size_t offset = 0;
  bool found = false;
  RankMessage message;
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &message, &found));
  REQUIRE(found);
  CHECK(message.name == "dense/kernel");
  CHECK(message.params == ARequest().params);
  CHECK(message.ranks.empty());
  CHECK(message.last_rank == -1);
  CHECK(message.step == 0);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &message, &found));
  REQUIRE(found);
  CHECK(message.type == RankMessage::Type::kReady);
  CHECK(message.ranks == std::vector<int32_t>{2, 4});
  CHECK(message.last_rank == 2);
  CHECK(message.step == 70000);
  REQUIRE(message.ids.size() == 2);
  CHECK(message.ids[0].count == 3);
  CHECK(message.ids[1].first == 7);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &message, &found));
  CHECK(!found);
  CHECK(offset == bytes.size());

  RankMessage join;
  join.type = RankMessage::Type::kJoin;
  join.average_over_active = true;
  Encode(join, &bytes);
  RankMessage elsewhere;
  elsewhere.type = RankMessage::Type::kElsewhere;
  elsewhere.name = "x";
  elsewhere.process_set_id = 2;
  Encode(elsewhere, &bytes);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &message, &found));
  REQUIRE(found);
  CHECK(message.average_over_active);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &message, &found));
  REQUIRE(found);
  CHECK(message.name == "x");
  CHECK(message.process_set_id == 2);
}

TEST_CASE("responses are read as written") {
  std::vector<uint8_t> bytes;
  Encode(AnExecution(), &bytes);
  Failure failure;
  failure.name = "x";
  failure.error = Status::Mismatch("no");
  failure.is_misplaced = true;
  failure.ranks = {1};
  Encode(failure, &bytes);
  JoinEnd end;
  end.last_rank = 7;
  Encode(end, &bytes);
  Encode(Query{"x", {1}, /*waiting=*/{4, 5}}, &bytes);

  size_t offset = 0;
  bool found = false;
  Response response;
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &response, &found));
  REQUIRE(found);
  const auto execution = std::get<Execution>(response);
  const std::vector<ResponseItem>& items = execution.items;
  REQUIRE(items.size() == 6);
  CHECK(items[3].cached_id == 9);
  CHECK(items[4].new_id == 10);
  CHECK(items[4].rows[1][1] == 7);
  CHECK(items[4].params == nullptr);
  CHECK(execution.divisor == 3);
  CHECK(*items[5].params == ARequest().params);
  CHECK(items[4].host_rows.sent.empty());
  CHECK(items[5].host_rows.sent[0][7] == 3);
  CHECK(items[5].host_rows.received[0][7] == 5);
  CHECK(items[5].host_rows.longest == 9);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &response, &found));
  failure = std::get<Failure>(response);
  CHECK(failure.error.code() == StatusCode::kMismatch);
  CHECK(failure.error.message() == "no");
  CHECK(failure.is_misplaced);
  REQUIRE(failure.ranks.size() == 1);
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &response, &found));
  end = std::get<JoinEnd>(response);
  CHECK(end.last_rank == 7);
  CHECK(end.error.ok());
  REQUIRE_OK(Decode(bytes, &offset, kLimits, &response, &found));
  const auto query = std::get<Query>(response);
  CHECK(query.name == "x");
  CHECK(query.ranks[0] == 1);
  CHECK(query.waiting[1] == 5);
}

// A known request costs two cache lines for a thousand tensors.
TEST_CASE("a thousand known requests take one cache line") {
  RankMessage ready;
  ready.type = RankMessage::Type::kReady;
  for (uint32_t id = 1; id <= 1000; ++id) AppendId(id, &ready.ids);
  std::vector<uint8_t> bytes;
  Encode(ready, &bytes);
  CHECK(bytes.size() < 64);
}

TEST_CASE("truncated and garbled messages are not believed") {
  std::vector<uint8_t> whole;
  Encode(ARequest(), &whole);
  for (size_t count = 0; count < whole.size(); ++count) {
    // The stream ends early: wait for more.
    std::vector<uint8_t> part(whole.begin(),
                              whole.begin() + static_cast<ptrdiff_t>(count));
    size_t offset = 0;
    bool found = true;
    RankMessage message;
    REQUIRE_OK(Decode(part, &offset, kLimits, &message, &found));
    CHECK(!found);
    CHECK(offset == 0);
    // The frame says that it is whole, but is not.
    if (count < 5) continue;
    const uint32_t body = static_cast<uint32_t>(count - 4);
    std::memcpy(part.data(), &body, sizeof(body));
    CHECK(!Decode(part, &offset, kLimits, &message, &found).ok());
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> garbled = whole;
    for (int k = 0; k < 3; ++k) {
      garbled[4 + random() % (garbled.size() - 4)] =
          static_cast<uint8_t>(random());
    }
    size_t offset = 0;
    bool found;
    RankMessage message;
    (void)Decode(garbled, &offset, kLimits, &message, &found).ok();
  }
}

// ---- Bounds ----

template <typename Message>
Status DecodeOne(const std::vector<uint8_t>& bytes) {
  Message message;
  size_t offset = 0;
  bool found = false;
  return Decode(bytes, &offset, kLimits, &message, &found);
}

template <typename Message>
Status Reread(const Message& message) {
  std::vector<uint8_t> bytes;
  Encode(message, &bytes);
  return DecodeOne<Message>(bytes);
}

// As another's program could write it.
std::vector<uint8_t> Frame(const std::function<void(ByteWriter*)>& write) {
  std::vector<uint8_t> body;
  ByteWriter writer(&body);
  write(&writer);
  const auto count = static_cast<uint32_t>(body.size());
  std::vector<uint8_t> frame(sizeof(count) + count);
  std::memcpy(frame.data(), &count, sizeof(count));
  std::memcpy(frame.data() + sizeof(count), body.data(), count);
  return frame;
}

std::vector<uint8_t> RunOfIds(uint32_t first, uint32_t count) {
  return Frame([&](ByteWriter* w) {
    w->Put(uint8_t{1});  // an Execution
    w->Put(int32_t{0});  // divisor
    w->Put(uint8_t{0});  // ids
    w->Put(uint32_t{1});
    w->Put(first);
    w->Put(count);
  });
}

TEST_CASE("as many ids run at once as the cache holds") {
  CHECK_OK(DecodeOne<Response>(RunOfIds(1, 64)));
  CHECK(RunOfIds(1, 65).size() == 22);
  CHECK(!DecodeOne<Response>(RunOfIds(1, 65)).ok());
  CHECK(!DecodeOne<Response>(RunOfIds(1, 20000000)).ok());
  CHECK(!DecodeOne<Response>(RunOfIds(1, 0)).ok());
  CHECK(!DecodeOne<Response>(RunOfIds(0, 1)).ok());  // no id
  CHECK_OK(DecodeOne<Response>(RunOfIds(UINT32_MAX, 1)));
  CHECK(!DecodeOne<Response>(RunOfIds(UINT32_MAX, 2)).ok());  // wraps
  // In several runs.
  Execution run;
  for (uint32_t id = 1; id <= 130; id += 2) {
    run.items.emplace_back().cached_id = id;
  }
  CHECK(!Reread<Response>(run).ok());
  run.items.resize(64);
  CHECK_OK(Reread<Response>(run));
  run.items.clear();
  CHECK(!Reread<Response>(run).ok());  // nothing to run
}

TEST_CASE("ids that are ready, forgotten or evicted are bounded") {
  for (auto type : {RankMessage::Type::kReady, RankMessage::Type::kForgotten}) {
    RankMessage message;
    message.type = type;
    message.ids = {{1, 1 << 19}, {1 << 20, 1 << 19}};
    CHECK_OK(Reread(message));
    message.ids[1].count += 1;
    CHECK(!Reread(message).ok());
  }
  Eviction eviction{{{7, 1 << 20}}};
  CHECK_OK(Reread<Response>(eviction));
  eviction.ids[0].count += 1;
  CHECK(!Reread<Response>(eviction).ok());
  eviction.ids[0] = {UINT32_MAX - 3, 8};
  CHECK(!Reread<Response>(eviction).ok());
}

TEST_CASE("lists of ranks, rows and divisors go as far as there are ranks") {
  Query query;
  query.ranks.assign(8, 7);
  query.waiting.assign(8, 100);  // global numbers
  CHECK_OK(Reread<Response>(query));
  query.waiting.push_back(101);
  CHECK(!Reread<Response>(query).ok());
  query.waiting = {-1};
  CHECK(!Reread<Response>(query).ok());
  query.waiting.clear();
  query.ranks.push_back(0);
  CHECK(!Reread<Response>(query).ok());
  Failure failure;
  failure.ranks = query.ranks;
  CHECK(!Reread<Response>(failure).ok());
  CHECK(!Reread<Response>(JoinEnd{Status(), query.ranks}).ok());

  Execution run = AnExecution();
  CHECK_OK(Reread<Response>(run));
  run.divisor = 8;
  CHECK_OK(Reread<Response>(run));
  for (int divisor : {9, -1}) {
    run.divisor = divisor;
    CHECK(!Reread<Response>(run).ok());
  }
  for (size_t num_ranks : {0, 7, 9}) {
    run = AnExecution();
    run.items[4].rows[1].resize(num_ranks);
    CHECK(!Reread<Response>(run).ok());
    run = AnExecution();
    run.items[5].host_rows.received[0].resize(num_ranks);
    CHECK(!Reread<Response>(run).ok());
  }
  RankMessage message = ARequest();
  message.ranks.assign(9, 0);
  CHECK(!Reread(message).ok());
  message.ranks = {-1};
  CHECK(!Reread(message).ok());
}

TEST_CASE("bytes of tensors must be countable") {
  RankMessage message = ARequest();
  Shape& shape = message.params.tensors[0].shape;  // of 8 bytes an element
  shape = {int64_t{1} << 59};
  CHECK_OK(Reread(message));
  shape = {int64_t{1} << 60};
  CHECK(!Reread(message).ok());
  shape = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK(!Reread(message).ok());
  shape = {0, int64_t{1} << 40, int64_t{1} << 40};  // a row's, too
  CHECK(!Reread(message).ok());
  shape = {4, -1};
  CHECK(!Reread(message).ok());
  shape = Shape(kMaxDimensions, 1);
  CHECK_OK(Reread(message));
  shape.push_back(1);
  CHECK(!Reread(message).ok());
  // All together.
  shape = {int64_t{1} << 59};
  message.params.tensors[1] = message.params.tensors[0];
  CHECK(!Reread(message).ok());
}

TEST_CASE("numbers that name nothing are refused") {
  const auto fails = [](const std::function<void(RequestParams*)>& change) {
    RankMessage message = ARequest();
    change(&message.params);
    return !Reread(message).ok();
  };
  CHECK(fails([](auto* p) { p->kind = static_cast<CollectiveKind>(7); }));
  CHECK(fails([](auto* p) { p->op = static_cast<ReduceOp>(6); }));
  CHECK(fails([](auto* p) { p->device = static_cast<DeviceKind>(3); }));
  CHECK(fails([](auto* p) {
    p->tensors[0].dtype = static_cast<DataType>(kNumDataTypes);
  }));
  for (int code : {-1, 8}) {
    CHECK(fails([code](auto* p) {
      p->failure = Status(static_cast<StatusCode>(code), "");
    }));
  }
  for (uint8_t type : {0, 7, 255}) {
    const auto frame = Frame([type](ByteWriter* w) { w->Put(type); });
    CHECK(!DecodeOne<RankMessage>(frame).ok());
    CHECK(!DecodeOne<Response>(frame).ok());
  }
  std::vector<uint8_t> bytes;
  Encode(AnExecution(), &bytes);
  bytes[4 + 1 + 4] = 3;  // the form of the first item
  CHECK(!DecodeOne<Response>(bytes).ok());
}

// A length that is garbled is no reason to wait for gigabytes.
TEST_CASE("the length of a frame is bounded") {
  std::vector<uint8_t> bytes;
  ByteWriter(&bytes).Put(kMaxFrameBytes);
  CHECK_OK(DecodeOne<Response>(bytes));  // not whole yet
  bytes.clear();
  ByteWriter(&bytes).Put(kMaxFrameBytes + 1);
  CHECK(!DecodeOne<Response>(bytes).ok());
  CHECK(!DecodeOne<RankMessage>(bytes).ok());
}

}  // namespace
}  // namespace hvd
