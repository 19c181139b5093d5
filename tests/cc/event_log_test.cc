// What observers of an engine hear of each request: order, content, times.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/engine/event.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
using Step = Event::Step;

// Keeps what it hears.
class Recorder : public EventObserver {
 public:
  struct Heard {
    Event event;  // without what it points at
    std::string name;
    CollectiveKind kind;
    StatusCode code = StatusCode::kOk;
  };

  explicit Recorder(bool wants_times = false) : wants_times_(wants_times) {}
  bool wants_times() const override { return wants_times_; }

  void OnEvent(const Event& event) override {
    Heard heard{event, event.request->name, event.request->kind};
    if (event.status != nullptr) heard.code = event.status->code();
    heard.event.request = nullptr;
    heard.event.status = nullptr;
    const std::lock_guard<std::mutex> lock(mu_);
    heard_.push_back(std::move(heard));
  }

  // The events of this request, in order.
  std::vector<Heard> of(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mu_);
    std::vector<Heard> found;
    for (const Heard& one : heard_) {
      if (one.name == name) found.push_back(one);
    }
    return found;
  }

 private:
  const bool wants_times_;
  std::mutex mu_;
  std::vector<Heard> heard_;
};

using Recorders = std::vector<std::shared_ptr<Recorder>>;

Engines MakeRecorded(int size, Recorders* recorders, bool wants_times = false) {
  Engines engines;
  for (auto& group : CreateInMemory(size)) {
    recorders->push_back(std::make_shared<Recorder>(wants_times));
    EngineOptions options = QuickOptions();
    options.observers = {recorders->back()};
    engines.push_back(Engine::Create(std::move(group), options));
  }
  return engines;
}

std::vector<Step> StepsOf(const std::vector<Recorder::Heard>& heard) {
  std::vector<Step> steps;
  for (const Recorder::Heard& one : heard) steps.push_back(one.event.step);
  return steps;
}

const std::vector<Step> kAllSteps = {Step::kAdmitted, Step::kNegotiated,
                                     Step::kBegun, Step::kEnded};

// Waits until all ranks but the last have had `num_heard` events of "x", and a
// moment longer for their messages to arrive.
void WaitForOthers(const Recorders& recorders, size_t num_heard) {
  for (size_t rank = 0; rank + 1 < recorders.size(); ++rank) {
    while (recorders[rank]->of("x").size() < num_heard) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST_CASE("each step of new and known requests is told, and who came last") {
  for (int size = 1; size <= 3; ++size) {
    CAPTURE(size);
    Recorders recorders;
    const Engines engines = MakeRecorded(size, &recorders);
    constexpr size_t kRounds = 3;
    RunRanks(engines, [&](int rank, Engine* engine) {
      for (size_t round = 0; round < kRounds; ++round) {
        if (rank == size - 1) WaitForOthers(recorders, 4 * round + 1);
        Run(engine, ARequest(CollectiveKind::kAllreduce, "x"),
            {Fill(kFloat, {3}, 1)});
        Run(engine, ARequest(CollectiveKind::kBarrier, "b"), {});
      }
    });
    const std::vector<Recorder::Heard> first = recorders[0]->of("x");
    for (int rank = 0; rank < size; ++rank) {
      const auto heard = recorders[static_cast<size_t>(rank)]->of("x");
      REQUIRE(heard.size() == 4 * kRounds);
      for (size_t i = 0; i < heard.size(); ++i) {
        const Event& event = heard[i].event;
        CAPTURE(i);
        CHECK(event.step == kAllSteps[i % 4]);
        CHECK(heard[i].kind == CollectiveKind::kAllreduce);
        CHECK(heard[i].code == StatusCode::kOk);
        CHECK(event.collective_id == first[i].event.collective_id);
        CHECK((event.collective_id == 0) == (event.step == Step::kAdmitted));
        CHECK(event.is_first == (event.step == Step::kBegun));
        CHECK(event.has_begun == (event.step == Step::kEnded));
        if (event.step == Step::kAdmitted) {
          CHECK(event.cache ==
                (i == 0 ? Event::Cache::kMiss : Event::Cache::kHit));
        }
        const bool knows = rank == 0 && event.step == Step::kNegotiated;
        CHECK(event.last_rank == (knows ? size - 1 : -1));
        if (knows && size > 1) {
          CHECK(event.late_by > std::chrono::milliseconds(10));
        }
        if (i >= 4) {
          CHECK((event.step == Step::kAdmitted ||
                 event.collective_id > heard[i - 4].event.collective_id));
        }
      }
      const EngineStats stats = engines[static_cast<size_t>(rank)]->stats();
      CHECK(stats.num_requests == 2 * kRounds);
      CHECK(stats.num_collectives == 2 * kRounds);
      CHECK(stats.num_bytes == 12 * kRounds);
      CHECK(stats.num_cache_hits == 2 * kRounds - 2);
      CHECK(stats.num_cache_misses == 2);
      CHECK(stats.pending_ns > 0);
    }
  }
}

TEST_CASE("requests that run together have one collective id") {
  Recorders recorders;
  const Engines engines = MakeRecorded(2, &recorders);
  RunRanks(engines, [](int, Engine* engine) {
    std::vector<std::future<Outcome>> sums;
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      sums.push_back(Submit(engine, ARequest(CollectiveKind::kAllreduce, name),
                            {Fill(kFloat, {3}, 1)}));
    }
    for (auto& sum : sums) REQUIRE_OK(sum.get().status);
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    std::map<uint64_t, int> num_first;  // by collective
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      const auto heard = recorders[rank]->of(name);
      REQUIRE(StepsOf(heard) == kAllSteps);
      num_first[heard[2].event.collective_id] += heard[2].event.is_first;
      CHECK(heard[2].event.collective_id ==
            recorders[0]->of(name)[2].event.collective_id);
    }
    for (const auto& [id, number] : num_first) CHECK(number == 1);
    CHECK(engines[rank]->stats().num_collectives == num_first.size());
  }
}

TEST_CASE("a call that the ranks refuse ends without having begun") {
  Recorders recorders;
  const Engines engines = MakeRecorded(3, &recorders);
  RunRanks(engines, [](int rank, Engine* engine) {
    Submit(engine, ARequest(CollectiveKind::kAllreduce, "x"),
           {Fill(kFloat, {rank == 1 ? 2 : 3}, 1)})
        .wait();
  });
  for (const auto& recorder : recorders) {
    const auto heard = recorder->of("x");
    REQUIRE(StepsOf(heard) == std::vector<Step>{Step::kAdmitted,
                                                Step::kNegotiated,
                                                Step::kEnded});
    CHECK(heard[0].code == StatusCode::kOk);
    CHECK(heard[1].code == StatusCode::kMismatch);
    CHECK(heard[2].code == StatusCode::kMismatch);
    CHECK(heard[1].event.collective_id == 1);
    CHECK(heard[2].event.collective_id == 1);
    CHECK(!heard[2].event.has_begun);
  }
  CHECK(recorders[0]->of("x")[1].event.last_rank >= 0);
  CHECK(engines[0]->stats().num_collectives == 0);
}

TEST_CASE("a request that the engine does not take ends at once") {
  Recorders recorders;
  const Engines engines = MakeRecorded(1, &recorders);
  Engine* const engine = engines[0].get();
  Submit(engine, ARequest(CollectiveKind::kBarrier, ""), {}).wait();
  engine->Shutdown("the test ends");
  Submit(engine, ARequest(CollectiveKind::kBarrier, "late"), {}).wait();
  for (const char* name : {"", "late"}) {
    const auto heard = recorders[0]->of(name);
    REQUIRE(StepsOf(heard) == std::vector<Step>{Step::kEnded});
    CHECK(heard[0].event.is_refused);
    CHECK(heard[0].code != StatusCode::kOk);
  }
  CHECK(engine->stats().num_requests == 2);
}

TEST_CASE("what is in flight at a shutdown ends without a collective") {
  Recorders recorders;
  const Engines engines = MakeRecorded(2, &recorders);
  auto alone =
      Submit(engines[0].get(), ARequest(CollectiveKind::kBarrier, "alone"), {});
  engines[0]->Shutdown("the test ends");
  CHECK(alone.get().status.code() == StatusCode::kShutdown);
  const auto heard = recorders[0]->of("alone");
  REQUIRE(StepsOf(heard) == std::vector<Step>{Step::kAdmitted, Step::kEnded});
  CHECK(heard[1].code == StatusCode::kShutdown);
  CHECK(heard[1].event.collective_id == 0);
}

TEST_CASE("a rank that has joined hears what it takes part in") {
  Recorders recorders;
  const Engines engines = MakeRecorded(2, &recorders);
  RunRanks(engines, [](int rank, Engine* engine) {
    if (rank == 0) {
      Run(engine, ARequest(CollectiveKind::kAllreduce, "x"),
          {Fill(kFloat, {3}, 1)});
    }
    Run(engine, ARequest(CollectiveKind::kJoin, "join"), {});
  });
  const auto heard = recorders[1]->of("x");
  REQUIRE(StepsOf(heard) == std::vector<Step>{Step::kBegun});
  CHECK(heard[0].event.is_neutral);
  CHECK(heard[0].event.collective_id ==
        recorders[0]->of("x")[2].event.collective_id);
  CHECK(StepsOf(recorders[1]->of("join")) ==
        std::vector<Step>{Step::kAdmitted, Step::kNegotiated, Step::kEnded});
  CHECK(engines[1]->stats().num_bytes == 12);
}

TEST_CASE("only an observer that wants times has the clock read") {
  for (const bool wants_times : {false, true}) {
    CAPTURE(wants_times);
    Recorders recorders;
    const Engines engines = MakeRecorded(1, &recorders, wants_times);
    Run(engines[0].get(), ARequest(CollectiveKind::kAllreduce, "x"),
        {Fill(kFloat, {3}, 1)});
    const auto heard = recorders[0]->of("x");
    REQUIRE(StepsOf(heard) == kAllSteps);
    for (size_t i = 1; i < heard.size(); ++i) {
      if (wants_times) {
        CHECK(heard[i].event.time >= heard[i - 1].event.time);
      } else {
        CHECK((heard[i].event.time == Clock::time_point()));
      }
    }
  }
}

}  // namespace
}  // namespace hvd
