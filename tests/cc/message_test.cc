// Control messages: what is written is read; nothing that is cut short or
// garbled is believed.
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {
namespace {

RankMessage ARequest() {
  RankMessage message;
  message.name = "dense/kernel";
  message.params.kind = CollectiveKind::kAllgather;
  message.params.op = ReduceOp::kMax;
  message.params.root_rank = 3;
  message.params.prescale = 0.25;
  message.params.average = true;
  message.params.equal_rows = true;
  message.params.splits = {4, 0, -1};
  message.params.tensors = {{DataType::kInt64, {2, 0, 5}},
                            {DataType::kBfloat16, {}}};
  return message;
}

Response AnExecution() {
  Response response;
  for (uint32_t id : {4u, 5u, 6u, 9u}) {
    response.items.emplace_back();
    response.items.back().cached_id = id;
  }
  response.items.emplace_back();
  response.items.back().name = "new";
  response.items.back().new_id = 10;
  response.items.back().rows = {{1, 2}, {0, 7}};
  response.divisor = 3;
  ResponseItem joined = response.items.back();
  joined.name = "newer";
  joined.params = std::make_shared<const RequestParams>(ARequest().params);
  response.items.push_back(joined);
  return response;
}

TEST_CASE("messages of ranks are read as written") {
  std::vector<uint8_t> bytes;
  Encode(ARequest(), &bytes);
  RankMessage ready;
  ready.type = RankMessage::Type::kReady;
  for (uint32_t id : {1u, 2u, 3u, 7u}) AppendId(id, &ready.ids);
  REQUIRE(ready.ids.size() == 2);
  Encode(ready, &bytes);

  size_t offset = 0;
  bool found = false;
  RankMessage message;
  REQUIRE_OK(Decode(bytes, &offset, &message, &found));
  REQUIRE(found);
  CHECK(message.name == "dense/kernel");
  CHECK(message.params == ARequest().params);
  REQUIRE_OK(Decode(bytes, &offset, &message, &found));
  REQUIRE(found);
  CHECK(message.type == RankMessage::Type::kReady);
  REQUIRE(message.ids.size() == 2);
  CHECK(message.ids[0].count == 3);
  CHECK(message.ids[1].first == 7);
  REQUIRE_OK(Decode(bytes, &offset, &message, &found));
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
  REQUIRE_OK(Decode(bytes, &offset, &message, &found));
  REQUIRE(found);
  CHECK(message.average_over_active);
  REQUIRE_OK(Decode(bytes, &offset, &message, &found));
  REQUIRE(found);
  CHECK(message.name == "x");
  CHECK(message.process_set_id == 2);
}

TEST_CASE("responses are read as written") {
  std::vector<uint8_t> bytes;
  Encode(AnExecution(), &bytes);
  Response error;
  error.type = Response::Type::kError;
  error.items.resize(1);
  error.items[0].name = "x";
  error.error = Status::Mismatch("no");
  error.is_misplaced = true;
  error.ranks = {1};
  Encode(error, &bytes);
  Response joined;
  joined.type = Response::Type::kJoined;
  joined.last_rank = 7;
  Encode(joined, &bytes);
  Response query = error;
  query.type = Response::Type::kQuery;
  query.waiting = {4, 5};
  Encode(query, &bytes);

  size_t offset = 0;
  bool found = false;
  Response response;
  REQUIRE_OK(Decode(bytes, &offset, &response, &found));
  REQUIRE(found);
  REQUIRE(response.items.size() == 6);
  CHECK(response.items[3].cached_id == 9);
  CHECK(response.items[4].new_id == 10);
  CHECK(response.items[4].rows[1][1] == 7);
  CHECK(response.items[4].params == nullptr);
  CHECK(response.divisor == 3);
  CHECK(*response.items[5].params == ARequest().params);
  REQUIRE_OK(Decode(bytes, &offset, &response, &found));
  CHECK(response.error.code() == StatusCode::kMismatch);
  CHECK(response.error.message() == "no");
  CHECK(response.is_misplaced);
  REQUIRE(response.ranks.size() == 1);
  REQUIRE_OK(Decode(bytes, &offset, &response, &found));
  CHECK(response.last_rank == 7);
  CHECK(response.error.ok());
  REQUIRE_OK(Decode(bytes, &offset, &response, &found));
  CHECK(response.items[0].name == "x");
  CHECK(response.ranks[0] == 1);
  CHECK(response.waiting[1] == 5);
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
    REQUIRE_OK(Decode(part, &offset, &message, &found));
    CHECK(!found);
    CHECK(offset == 0);
    // The frame says that it is whole, but is not.
    if (count < 5) continue;
    const uint32_t body = static_cast<uint32_t>(count - 4);
    std::memcpy(part.data(), &body, sizeof(body));
    CHECK(!Decode(part, &offset, &message, &found).ok());
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
    (void)Decode(garbled, &offset, &message, &found).ok();
  }
}

}  // namespace
}  // namespace hvd
