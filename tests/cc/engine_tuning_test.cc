// Settings that change while engines run: on all ranks before the same
// collective.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/negotiation/tuning.h"

namespace hvd {
namespace {

TEST_CASE("all ranks change settings at the same place") {
  constexpr int kSize = 3;
  EngineOptions options = QuickOptions();
  TunerOptions tuner;
  tuner.begin = {1 << 10, 2000};
  tuner.steps_per_sample = 1;
  const auto board = std::make_shared<TuningBoard>(tuner);
  options.tuning = board;  // all engines write into it
  board->Answer({});
  const Engines engines = MakeEngines(kSize, options);
  RunRanks(engines, [&](int rank, Engine* engine) {
    for (int step = 0; step < 80; ++step) {
      std::vector<std::future<Outcome>> outcomes;
      for (int i = 0; i < 4; ++i) {
        outcomes.push_back(Submit(engine,
                                  ARequest(CollectiveKind::kAllreduce,
                                           "sgd/bucket_" + std::to_string(i)),
                                  {Fill(DataType::kFloat32, {400}, rank + i)}));
      }
      for (int i = 0; i < 4; ++i) {
        const Outcome outcome = outcomes[static_cast<size_t>(i)].get();
        REQUIRE_OK(outcome.status);
        CHECK(outcome.outputs[0] ==
              Fill(DataType::kFloat32, {400}, 3 + kSize * i));
      }
    }
  });
  CHECK(board->report().state == TuningState::kDone);
  std::map<uint64_t, std::vector<Tunables>> by_collective;
  for (const TuningChange& change : board->changes()) {
    by_collective[change.collective].push_back(change.settings);
  }
  CHECK(by_collective.size() > 5);
  for (const auto& change : by_collective) {
    const std::vector<Tunables>& all = change.second;
    CAPTURE(change.first);
    CHECK(all.size() == kSize);
    for (const Tunables& one : all) CHECK(one == all[0]);
  }
  CHECK(by_collective.rbegin()->second[0] == board->report().settings);
}

}  // namespace
}  // namespace hvd
