// Fuzz target of the control messages and of the coordinator that reads them:
// `make fuzz` runs it with libFuzzer, tests/cc/message_fuzz_test.cc with a
// fixed seed.
//
// An input is the number of a stream of valid messages and changes to it, two
// bytes of position and one of value each; or, from 0x80 on, the stream itself.
// Whatever comes, reading ends, takes little memory and is either refused or
// read alike when it is written again.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tf_ops/negotiation/coordinator.h"
#include "tf_ops/negotiation/host_coordinator.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kNumRanks = 3;
constexpr MessageLimits kLimits{kNumRanks, 16};
const std::vector<int> kHosts{0, 0, 1};  // by rank

void Must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "must hold: %s\n", what);
  std::abort();
}

RankMessage Call(CollectiveKind kind, const char* name, Shape shape) {
  RankMessage message;
  message.name = name;
  message.params.kind = kind;
  message.params.tensors = {{DataType::kFloat32, std::move(shape)}};
  return message;
}

RankMessage OfType(RankMessage::Type type, const char* name = "") {
  RankMessage message;
  message.type = type;
  message.name = name;
  AppendId(1, &message.ids);
  return message;
}

RankMessage By(std::vector<int32_t> ranks, RankMessage message) {
  message.ranks = std::move(ranks);
  message.last_rank = message.ranks.empty() ? -1 : message.ranks.back();
  return message;
}

// What ranks say, in turns of the ranks.
std::vector<Bytes> Requests() {
  std::vector<Bytes> streams;
  const auto add = [&streams](const std::vector<RankMessage>& messages) {
    streams.emplace_back();
    for (const RankMessage& message : messages) {
      for (int rank = 0; rank < kNumRanks; ++rank) {
        Encode(message, &streams.back());
      }
    }
  };
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::kJoin); ++kind) {
    add({Call(static_cast<CollectiveKind>(kind), "a", {3, 2})});
  }
  RankMessage group = Call(CollectiveKind::kAllreduce, "g", {2});
  group.params.tensors.push_back({DataType::kBfloat16, {}});
  RankMessage split = Call(CollectiveKind::kAlltoall, "s", {6});
  split.params.splits = {1, 2, 3};
  add({group, split});
  group.params.tensors.clear();
  RankMessage other = group;
  other.name = "h";
  add({group, other});
  add({Call(CollectiveKind::kAllreduce, "a", {2}),
       OfType(RankMessage::Type::kReady),
       Call(CollectiveKind::kAllreduce, "a", {3}),
       OfType(RankMessage::Type::kForgotten)});
  add({Call(CollectiveKind::kAllgather, "a", {2, 5}),
       OfType(RankMessage::Type::kDuplicate, "a"),
       OfType(RankMessage::Type::kElsewhere, "a"),
       OfType(RankMessage::Type::kJoin)});
  add({By({0}, Call(CollectiveKind::kAllgather, "a", {2, 5})),
       By({0, 1}, OfType(RankMessage::Type::kReady)),
       By({2}, OfType(RankMessage::Type::kJoin))});
  return streams;
}

// What the coordinator says.
std::vector<Bytes> Responses() {
  std::vector<Bytes> streams;
  const auto add = [&streams](const Response& response) {
    streams.emplace_back();
    Encode(response, &streams.back());
  };
  Execution run;
  run.divisor = 2;
  run.items.resize(6);
  for (uint32_t id = 1; id <= 4; ++id) run.items[id - 1].cached_id = id;
  run.items[4].name = "new";
  run.items[4].new_id = 5;
  run.items[4].rows = {{1, 2, 0}, {0, 7, 9}};
  run.items[5].host_rows = {{{1, 2, 0}, {0, 3, 9}}, {{1, 0, 7}, {2, 3, 1}}, 9};
  run.items[5].name = "joined";
  run.items[5].params = std::make_shared<const RequestParams>(
      Call(CollectiveKind::kAllreduce, "", {4, 4}).params);
  add(run);
  Failure failure;
  failure.name = "x";
  failure.error = Status::Mismatch("no");
  failure.ranks = {0, 2};
  add(failure);
  add(Eviction{{{7, 1}}});
  add(JoinEnd{failure.error, failure.ranks});
  add(Query{"x", failure.ranks, /*waiting=*/{1}});
  add(Tunables());
  return streams;
}

// Reads a stream; written and read again each message must be the same bytes.
template <typename Message, typename Use>
void ReadAll(const Bytes& stream, const Use& use) {
  size_t offset = 0;
  bool found = true;
  while (true) {
    Message message;
    if (!Decode(stream, &offset, kLimits, &message, &found).ok()) return;
    if (!found) return;
    Bytes once, twice;
    Encode(message, &once);
    Message again;
    size_t end = 0;
    Must(Decode(once, &end, kLimits, &again, &found).ok() && found,
         "what was read can be written and read");
    Encode(again, &twice);
    Must(once == twice, "a message survives writing and reading");
    use(message);
  }
}

// What it says is what a rank can read.
void CheckResponses(Coordinator* coordinator, HostCoordinator* leader) {
  for (const Response& response : coordinator->TakeResponses()) {
    Bytes bytes;
    Encode(response, &bytes);
    Response read;
    size_t offset = 0;
    bool found = false;
    Must(Decode(bytes, &offset, kLimits, &read, &found).ok() && found,
         "what the coordinator says can be read");
    leader->OnResponse(read);
  }
}

void ReadRequests(const Bytes& stream) {
  CoordinatorOptions options;
  options.cache_capacity = kLimits.cache_capacity;
  Coordinator one_host(kNumRanks, options);
  options.hosts = kHosts;
  Coordinator of_hosts(kNumRanks, options);  // hears what hosts say
  Coordinator of_leaders(kNumRanks, options);
  HostCoordinator leader({0, 1});  // of the first host
  HostCoordinator unused({2});
  Clock::time_point now{std::chrono::seconds(1000)};
  int num_read = 0;
  ReadAll<RankMessage>(stream, [&](const RankMessage& message) {
    const int rank = num_read % kNumRanks;
    // An engine would end with the first error.
    (void)one_host.OnMessage(rank, message, now).ok();
    (void)of_hosts.OnMessage(kHosts[static_cast<size_t>(rank)], message, now)
        .ok();
    if (rank < 2) {
      (void)leader.OnMessage(rank, message, now).ok();
    } else {
      (void)of_leaders.OnMessage(1, message, now).ok();
    }
    for (const RankMessage& told : leader.TakeMessages(now)) {
      (void)of_leaders.OnMessage(0, told, now).ok();
    }
    // Now and then: so that several calls run at once.
    if (++num_read % (2 * kNumRanks) != 0) return;
    now += std::chrono::seconds(30);
    for (Coordinator* coordinator : {&one_host, &of_hosts, &of_leaders}) {
      coordinator->CheckStalls(now);
      CheckResponses(coordinator,
                     coordinator == &of_leaders ? &leader : &unused);
    }
  });
}

void ReadResponses(const Bytes& stream) {
  ReadAll<Response>(stream, [&](const Response& response) {
    const auto* execution = std::get_if<Execution>(&response);
    if (execution == nullptr) return;
    Must(execution->items.size() <= stream.size() + 16,
         "few items of few bytes");
    const auto allgather = Call(CollectiveKind::kAllgather, "", {1, 4});
    const auto alltoall = Call(CollectiveKind::kAlltoall, "", {3, 4});
    for (const ResponseItem& item : execution->items) {
      for (const std::vector<int>& host_ranks :
           {std::vector<int>(), std::vector<int>{0, 1}}) {
        const RankPlace place{1, kNumRanks, host_ranks};
        (void)CheckRows(allgather.params, place, item).ok();
        (void)CheckRows(alltoall.params, place, item).ok();
      }
    }
  });
}

// Of the number and changes that an input holds.
Bytes StreamOf(const std::vector<Bytes>& streams, const uint8_t* data,
               size_t size) {
  if (data[0] >= 0x80) return Bytes(data + 1, data + size);
  Bytes stream = streams[data[0] / 2 % streams.size()];
  for (size_t i = 1; i + 3 <= size; i += 3) {
    stream[(data[i] | data[i + 1] << 8) % stream.size()] = data[i + 2];
  }
  return stream;
}

}  // namespace
}  // namespace hvd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto requests = hvd::Requests();
  static const auto responses = hvd::Responses();
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    hvd::ReadRequests(hvd::StreamOf(requests, data, size));
  } else {
    hvd::ReadResponses(hvd::StreamOf(responses, data, size));
  }
  return 0;
}
