// Process sets on fake GPUs where a kernel needs the whole GPU: ranks that
// launched kernels of two sets in different orders would wait for ever.
#include <chrono>
#include <random>

#include "tests/cc/gpu_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
constexpr int kNumCalls = 60;

struct AloneOnGpus : FakeGpus {
  AloneOnGpus() { UseFakes().run_alone(1); }
  ~AloneOnGpus() { UseFakes().run_alone(0); }
};

// The job, and sets of some of its ranks; by set, then by member.
struct Sets {
  explicit Sets(int size, const std::vector<std::vector<int>>& members) {
    const EngineOptions options = GpuOptionsOfTests();
    std::vector<std::shared_ptr<HostGroup>> job;
    for (auto& group : CreateInMemory(size)) {
      job.emplace_back(std::move(group));
      engines[0].push_back(Engine::Create(job.back(), options));
    }
    for (size_t set = 0; set < members.size(); ++set) {
      const std::vector<int>& ranks = members[set];
      auto groups = CreateInMemory(static_cast<int>(ranks.size()));
      for (size_t i = 0; i < ranks.size(); ++i) {
        const auto& own = job[static_cast<size_t>(ranks[i])];
        groups[i]->membership()->BindToJob({own, own->membership()}, ranks);
        EngineOptions of_set = options;
        of_set.global_ranks = ranks;
        engines[set + 1].push_back(
            Engine::Create(std::move(groups[i]), of_set));
      }
    }
  }
  // The sets end before the job.
  ~Sets() {
    for (auto it = engines.rbegin(); it != engines.rend(); ++it) it->clear();
  }
  std::array<Engines, 4> engines;
};

// A thread of a rank makes all calls of one set, at its own pace.
void CallOften(int rank, int set, int size, Engine* engine) {
  UserGpu gpu(rank);
  std::minstd_rand random(static_cast<unsigned>(7 * rank + set + 1));
  for (int i = 0; i < kNumCalls; ++i) {
    GpuTensors call(&gpu, {Fill(kFloat, {20}, 1), Fill(kFloat, {3}, 1)});
    const auto nap = std::chrono::microseconds(random() % 300);
    std::this_thread::sleep_for(nap);
    CHECK_OK(call.Submit(engine, ARequest(CollectiveKind::kAllreduce,
                                          "a" + std::to_string(i)))
                 .get());
    CHECK(call.Output(0).numbers[19] == size);
    CHECK(call.Output(1).numbers[2] == size);
  }
}

TEST_CASE_FIXTURE(AloneOnGpus, "overlapping sets launch in one order") {
  // Each two of them share a rank: 0 and 1, 1 and 2, 2 and 0.
  const std::vector<std::vector<int>> members = {{0, 1}, {1, 2}, {0, 2}};
  const Sets sets(3, members);
  struct Part {
    int rank;
    int set;
    Engine* engine;
  };
  std::vector<Part> parts;
  for (int set = 0; set < 4; ++set) {
    const Engines& engines = sets.engines[static_cast<size_t>(set)];
    for (size_t i = 0; i < engines.size(); ++i) {
      const int rank = set == 0 ? static_cast<int>(i)
                                : members[static_cast<size_t>(set - 1)][i];
      parts.push_back({rank, set, engines[i].get()});
    }
  }
  RunOnThreads(static_cast<int>(parts.size()), [&](int which) {
    const Part& part = parts[static_cast<size_t>(which)];
    CallOften(part.rank, part.set, part.set == 0 ? 3 : 2, part.engine);
  });
}

// The second set's buffer is that of the first.
TEST_CASE_FIXTURE(FakeGpus, "process sets share the fusion buffer of a GPU") {
  const Sets sets(2, {{0, 1}});
  UserGpu gpu(0);
  size_t free[3] = {gpu.FreeBytes()};
  for (size_t set : {0, 1}) {
    RunRanks(sets.engines[set], [](int rank, Engine* engine) {
      UserGpu own(rank);
      GpuTensors call(&own, {Fill(kFloat, {20}, 1)});
      CHECK_OK(
          call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a")).get());
    });
    free[set + 1] = gpu.FreeBytes();
  }
  CHECK(free[0] - free[1] == 64 << 10);
  CHECK(free[2] == free[1]);
}

}  // namespace
}  // namespace hvd
