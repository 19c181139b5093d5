// What profilers see of collectives.
#include "tf_ops/observe/profiler_ranges.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

std::atomic<int> level{0};
Mutex mu;
std::vector<TraceMeEvent>* recorded GUARDED_BY(mu) = nullptr;

void Record(TraceMeEvent&& event) {
  const MutexLock lock(&mu);
  recorded->push_back(std::move(event));
}

// On two ranks.
void RunAllreduce(const Engines& engines, const std::string& name) {
  RunRanks(engines, [&](int, Engine* engine) {
    Run(engine, ARequest(CollectiveKind::kAllreduce, name),
        {Fill(DataType::kFloat32, {50}, 1)});
  });
}

TEST_CASE("TensorFlow's profiler gets a range while it records") {
  std::vector<TraceMeEvent> events;
  {
    const MutexLock lock(&mu);
    recorded = &events;
  }
  const auto ranges = std::make_shared<ProfilerRanges>();
  TraceMeApi api;
  api.record = &Record;
  api.level = &level;
  ranges->SetTraceMe(api);
  Engines engines;
  for (auto& group : CreateInMemory(2)) {
    EngineOptions options = QuickOptions();
    if (engines.empty()) options.observers = {ranges};
    engines.push_back(Engine::Create(std::move(group), options));
  }
  RunAllreduce(engines, "before");
  level.store(2);
  RunAllreduce(engines, "a");
  level.store(0);
  RunAllreduce(engines, "after");
  REQUIRE(events.size() == 1);
  CHECK(events[0].name == "HorovodAllreduce:a#bytes=200,requests=1#");
  CHECK(events[0].start_time > 0);
  CHECK(events[0].start_time <= events[0].end_time);
}

}  // namespace
}  // namespace hvd
