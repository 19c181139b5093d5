// Corrupt counters in shared memory: a rank neither writes nor reads outside of
// a control ring, and gives up at once with an error that names the peer.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/host/control_channel.h"
#include "tf_ops/host/region.h"

namespace hvd {
namespace {

constexpr uint64_t kFar = 300000;  // more than a ring has

// Three ranks, and what is between ranks 0 and 1.
struct Ranks {
  std::shared_ptr<void> memory = AllocateRegion({3});
  RegionView region{memory.get()};
  std::shared_ptr<HostGroup> group[3] = {
      std::make_shared<HostGroup>(memory, 0, 0),
      std::make_shared<HostGroup>(memory, 1, 0),
      std::make_shared<HostGroup>(memory, 2, 0)};
  ControlRing* up() const { return &region.area(1)->to_coordinator; }
  ControlRing* down() const { return &region.area(1)->from_coordinator; }
};

void CheckIsCorrupt(const Status& status, int peer) {
  CHECK(status.code() == StatusCode::kInternal);
  CHECK(Contains(status.message(), "rank " + std::to_string(peer)));
  CHECK(Contains(status.message(), "corrupt"));
}

// If more was read than written, far more than a ring seems to be free.
TEST_CASE("a writer stays in its ring") {
  for (const int writer : {0, 1}) {
    const Ranks ranks;
    ControlRing* const ring = writer == 0 ? ranks.down() : ranks.up();
    ring->num_read.store(kFar);
    std::memset(ranks.region.slab(1), 0, ranks.region.shape().slab_bytes());
    ControlChannel* const control = ranks.group[writer]->control();
    control->Send(1 - writer, std::vector<uint8_t>(kFar, 0xee));
    CheckIsCorrupt(control->Flush(), 1 - writer);
    CheckIsCorrupt(control->FlushAll(), 1 - writer);
    CHECK(ring->num_written.load() == 0);
    const std::byte* const slab = ranks.region.slab(1);
    CHECK(std::all_of(slab, slab + ranks.region.shape().slab_bytes(),
                      [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_CASE("a reader stays in its ring") {
  for (const int reader : {0, 1}) {
    for (const uint64_t num_written : {kRingBytes + 1, kFar, uint64_t(-1)}) {
      const Ranks ranks;
      ControlRing* const ring = reader == 0 ? ranks.up() : ranks.down();
      ring->num_written.store(num_written);
      ControlChannel* const control = ranks.group[reader]->control();
      std::vector<uint8_t> bytes;
      bool received = false;
      CheckIsCorrupt(control->Receive(1 - reader, &bytes, &received),
                     1 - reader);
      CHECK(!received);
      CHECK(bytes.empty());
    }
  }
}

std::future<Outcome> Sum(Engine* engine) {
  return Submit(engine, ARequest(CollectiveKind::kAllreduce, "x"),
                {Fill(DataType::kFloat32, {4}, 1)});
}

template <typename Corrupt>
void CheckGroupBreaks(Corrupt corrupt) {
  const Ranks ranks;
  Engines engines;
  for (const std::shared_ptr<HostGroup>& group : ranks.group) {
    engines.push_back(Engine::Create(group, QuickOptions()));
  }
  corrupt(ranks);
  const Clock::time_point begin = Clock::now();
  std::vector<std::future<Outcome>> futures;
  for (const auto& engine : engines) futures.push_back(Sum(engine.get()));
  for (std::future<Outcome>& future : futures) {
    const Status status = future.get().status;
    CHECK((status.code() == StatusCode::kInternal ||
           status.code() == StatusCode::kPeerLost));
    CHECK(Contains(status.message(), "between rank"));
    CHECK(Contains(status.message(), "is corrupt"));
  }
  CHECK(Sum(engines[2].get()).get().status.code() == StatusCode::kPeerLost);
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("the group breaks at once") {
  CheckGroupBreaks([](const Ranks& r) { r.up()->num_written += kFar; });
  CheckGroupBreaks([](const Ranks& r) { r.up()->num_read += kFar; });
  CheckGroupBreaks([](const Ranks& r) { r.down()->num_written += kFar; });
  CheckGroupBreaks([](const Ranks& r) { r.down()->num_read += kFar; });
}

}  // namespace
}  // namespace hvd
