// The leader's part in the negotiation, alone: few messages for all ranks of a
// host.
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/coordinator_util.h"
#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/host_coordinator.h"

namespace hvd {
namespace {

using Type = RankMessage::Type;
using Ranks = std::vector<int32_t>;

const Ranks kAll;  // of the host
constexpr auto kSoon = std::chrono::milliseconds(1);

RankMessage OfType(Type type, const std::string& name = "") {
  RankMessage message;
  message.type = type;
  message.name = name;
  return message;
}

// All ranks of a host know the ids 1, 2, ... for `names`.
Execution Learned(const std::vector<std::string>& names) {
  Execution execution;
  for (const std::string& name : names) {
    ResponseItem& item = execution.items.emplace_back();
    item.name = name;
    item.new_id = static_cast<uint32_t>(execution.items.size());
  }
  return execution;
}

// The leader of a host with ranks 4, 5 and 6.
class Host {
 public:
  void Say(int local_rank, const RankMessage& message) {
    REQUIRE_OK(leader_.OnMessage(local_rank, message, now_));
  }
  void AllSay(const RankMessage& message) {
    for (int local_rank : {0, 1, 2}) Say(local_rank, message);
  }
  void Hear(const Response& response) { leader_.OnResponse(response); }
  std::vector<RankMessage> Told() { return leader_.TakeMessages(now_); }
  // The one message that is told now.
  RankMessage Only(Type type, const Ranks& ranks) {
    const std::vector<RankMessage> told = Told();
    REQUIRE(told.size() == 1);
    CHECK(told[0].type == type);
    CHECK(told[0].ranks == ranks);
    return told[0];
  }
  void Wait(std::chrono::milliseconds time) { now_ += time; }
  HostCoordinator* leader() { return &leader_; }

 private:
  HostCoordinator leader_{{4, 5, 6}};
  Clock::time_point now_ = kStart;
};

TEST_CASE("known requests of all ranks are one message") {
  Host host;
  host.Hear(Learned({"a", "b", "c"}));
  for (int round = 0; round < 3; ++round) {
    host.Say(0, Ready({1, 2, 3}));
    host.Say(2, Ready({2, 1}));
    host.Say(2, Ready({3}));
    CHECK(host.Told().empty());
    host.Say(1, Ready({1, 2}));
    host.Say(1, Ready({3}));
    const RankMessage told = host.Only(Type::kReady, kAll);
    CHECK(NumIds(told.ids) == 3);
    CHECK(told.ids.size() == 1);
    CHECK(told.last_rank == 5);
    CHECK(!host.leader()->holds_back());
    Execution run;
    run.items.emplace_back().cached_id = 1;
    host.Hear(run);
  }
}

TEST_CASE("a new request of all ranks is one message") {
  Host host;
  host.AllSay(ACall("a"));
  const RankMessage told = host.Only(Type::kRequest, kAll);
  CHECK(told.name == "a");
  CHECK(told.params == ACall("a").params);
  CHECK(told.last_rank == 6);
}

TEST_CASE("ranks with other parameters are told apart") {
  Host host;
  host.Say(1, ACall("a", {7}));
  host.Say(0, ACall("a", {2}));
  host.Say(2, ACall("a", {2}));
  std::vector<RankMessage> told = host.Told();
  REQUIRE(told.size() == 2);
  CHECK(told[0].ranks == Ranks{5});
  CHECK(told[0].params.tensors[0].shape == Shape{7});
  CHECK(told[1].ranks == Ranks{4, 6});
  CHECK(told[1].last_rank == 6);
  // An id and parameters, as after an allgather of other rows.
  host.Hear(Learned({"a"}));
  host.Say(0, Ready({1}));
  host.Say(2, ACall("a", {8}));
  CHECK(host.Told().empty());
  host.Say(1, Ready({1}));
  told = host.Told();
  REQUIRE(told.size() == 2);
  CHECK(told[0].type == Type::kRequest);
  CHECK(told[0].ranks == Ranks{6});
  CHECK(told[1].type == Type::kReady);
  CHECK(told[1].ranks == Ranks{4, 5});
  CHECK(told[1].last_rank == 5);
}

TEST_CASE("what some ranks have come for is told after a while") {
  Host host;
  host.Hear(Learned({"a", "b"}));
  host.Say(0, Ready({1}));
  host.Wait(kTellPartAfter - kSoon);
  host.Say(1, ACall("new"));
  CHECK(host.Told().empty());
  host.Wait(kSoon);
  CHECK(host.Only(Type::kReady, {4}).ids[0].first == 1);
  CHECK(host.leader()->holds_back());
  host.Wait(kTellPartAfter);
  CHECK(host.Only(Type::kRequest, {5}).name == "new");
  CHECK(!host.leader()->holds_back());
  // The others come one by one, the last one at once.
  host.Say(2, Ready({1}));
  CHECK(host.Told().empty());
  host.Say(1, Ready({1}));
  CHECK(host.Only(Type::kReady, {5, 6}).last_rank == 5);
  host.AllSay(Ready({1}));
  host.Only(Type::kReady, kAll);
}

Failure FailureOf(const std::string& name, const Ranks& ranks) {
  Failure failure;
  failure.name = name;
  failure.ranks = ranks;
  return failure;
}

TEST_CASE("an answer comes before what the ranks say next") {
  Host host;
  host.Say(0, ACall("a"));
  host.Wait(kTellPartAfter);
  host.Only(Type::kRequest, {4});
  host.Hear(FailureOf("a", {4}));
  // Rank 4 again, the others late.
  host.AllSay(ACall("a"));
  const std::vector<RankMessage> told = host.Told();
  REQUIRE(told.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(told[i].ranks == Ranks{4 + i});
  CHECK(!host.leader()->holds_back());
  // All have met: the host speaks as one again.
  Execution met;
  met.items.emplace_back().name = "a";
  host.Hear(met);
  host.AllSay(ACall("a"));
  host.Only(Type::kRequest, kAll);
}

TEST_CASE("a call that has failed elsewhere is told before later ones") {
  Host host;
  SUBCASE("and was held when it failed") {
    host.Say(0, ACall("a"));
    host.Hear(FailureOf("a", {1}));
    CHECK(host.Only(Type::kRequest, {4}).name == "a");
  }
  SUBCASE("and is made after that") {
    host.Say(1, ACall("later"));
    host.Say(2, ACall("later"));
    host.Hear(FailureOf("a", {5, 6}));
    for (const char* name : {"before", "a", "later"}) host.Say(0, ACall(name));
    const std::vector<RankMessage> told = host.Told();
    REQUIRE(told.size() == 4);
    CHECK(told[0].name == "later");
    CHECK(told[0].ranks == Ranks{5, 6});
    CHECK(told[1].name == "before");
    CHECK(told[2].name == "a");
    CHECK(told[3].name == "later");
    CHECK(told[3].ranks == Ranks{4});
  }
}

TEST_CASE("ranks are not held up by one that has joined") {
  Host host;
  host.Hear(Learned({"a"}));
  host.Say(1, Ready({1}));
  host.Say(0, ACall("b"));
  host.Say(0, OfType(Type::kJoin));
  // What the ranks have come for before counts.
  std::vector<RankMessage> told = host.Told();
  REQUIRE(told.size() == 3);
  for (const RankMessage& message : told) CHECK(message.ranks.size() == 1);
  CHECK(told[2].type == Type::kJoin);
  CHECK(told[2].ranks == Ranks{4});
  host.Say(2, Ready({1}));
  host.Only(Type::kReady, {6});
  host.Say(1, ACall("b"));
  CHECK(host.Told().empty());
  host.Say(2, ACall("b"));
  host.Only(Type::kRequest, {5, 6});
  // The last ones join: nothing waits.
  host.Say(1, Ready({1}));
  host.Say(2, OfType(Type::kJoin));
  CHECK(host.Told().size() == 2);
  CHECK(!host.leader()->holds_back());
  host.Say(1, OfType(Type::kJoin));
  host.Only(Type::kJoin, {5});
  host.Hear(JoinEnd());
  host.AllSay(Ready({1}));
  host.Only(Type::kReady, kAll);
}

TEST_CASE("what one rank says is passed on after what it has come for") {
  for (const Type type : {Type::kDuplicate, Type::kElsewhere}) {
    Host host;
    host.Say(1, ACall("a"));
    host.Say(1, OfType(type, "a"));
    const std::vector<RankMessage> told = host.Told();
    REQUIRE(told.size() == 2);
    CHECK(told[0].type == Type::kRequest);
    CHECK(told[1].type == type);
    CHECK(told[1].ranks == Ranks{5});
    CHECK(told[1].name == "a");
  }
}

TEST_CASE("ids are forgotten once all ranks have") {
  Host host;
  host.Hear(Learned({"a", "b", "c"}));
  host.Say(0, Ready({1}));  // before it hears of the eviction
  const RankMessage forgotten = Ids(Type::kForgotten, {1, 2});
  host.Say(0, forgotten);
  host.Say(1, forgotten);
  CHECK(host.Told().empty());
  host.Say(2, forgotten);
  const std::vector<RankMessage> told = host.Told();
  REQUIRE(told.size() == 2);
  CHECK(told[0].type == Type::kReady);
  CHECK(told[0].ranks == Ranks{4});
  CHECK(told[1].type == Type::kForgotten);
  CHECK(told[1].ranks == kAll);
  CHECK(told[1].ids[0].count == 2);
  CHECK(!host.leader()->OnMessage(1, Ready({1}), kStart).ok());
  CHECK_OK(host.leader()->OnMessage(1, Ready({3}), kStart));
}

TEST_CASE("nonsense of a rank is an error") {
  Host host;
  host.Hear(Learned({"a"}));
  const auto fails = [&host](const RankMessage& message) {
    return host.leader()->OnMessage(1, message, kStart).code() ==
           StatusCode::kInternal;
  };
  CHECK(fails(Ready({2})));
  CHECK(fails(Ids(Type::kForgotten, {2})));
  RankMessage message;
  message.type = Type::kReady;
  message.ids = {{1, 20000000}};
  CHECK(fails(message));
  message = ACall("b");
  message.ranks = {4};
  CHECK(fails(message));
  CHECK(host.Told().empty());
}

TEST_CASE("a host of one rank says what its rank says") {
  HostCoordinator leader({7});
  for (const RankMessage& message :
       {ACall("a"), OfType(Type::kDuplicate, "a"), OfType(Type::kJoin)}) {
    REQUIRE_OK(leader.OnMessage(0, message, kStart));
    const std::vector<RankMessage> told = leader.TakeMessages(kStart);
    REQUIRE(told.size() == 1);
    CHECK(told[0].type == message.type);
    CHECK(told[0].ranks == kAll);
  }
}

}  // namespace
}  // namespace hvd
