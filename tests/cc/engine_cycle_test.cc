// An engine that waits for a cycle before it takes what was submitted.
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kCycle{1000};

EngineOptions CycleOptions() {
  EngineOptions options = QuickOptions();
  options.cycle_time_ms = static_cast<double>(kCycle.count());
  return options;
}

TEST_CASE("an engine that waits for its cycle answers") {
  const Engines engines = MakeEngines(1, CycleOptions());
  std::future<Outcome> sum =
      Submit(engines[0].get(), ARequest(CollectiveKind::kAllreduce, "x"),
             {Fill(DataType::kFloat32, {3}, 2)});
  std::this_thread::sleep_for(kCycle / 5);
  const std::optional<bool> found =
      engines[0]->IsInFlight("x", std::chrono::milliseconds(100));
  REQUIRE(found.has_value());  // nobody held the engine all the while
  CHECK(*found);
  CHECK_OK(sum.get().status);
}

TEST_CASE("what comes in a cycle runs together") {
  const Engines engines = MakeEngines(1, CycleOptions());
  std::vector<std::future<Outcome>> sums;
  for (const char* name : {"x", "y", "z"}) {
    sums.push_back(Submit(engines[0].get(),
                          ARequest(CollectiveKind::kAllreduce, name),
                          {Fill(DataType::kFloat32, {3}, 2)}));
    std::this_thread::sleep_for(kCycle / 10);
  }
  for (std::future<Outcome>& sum : sums) CHECK_OK(sum.get().status);
  CHECK(engines[0]->stats().num_collectives == 1);
}

}  // namespace
}  // namespace hvd
