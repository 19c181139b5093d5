// Process sets on fake GPUs where a kernel needs the whole GPU: ranks that
// launched kernels of two sets in different orders would wait for ever.
#include <chrono>
#include <numeric>
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

// A thread of a rank makes all calls of one set, at its own pace.
void CallInSet(int rank, int set, int size, Engine* engine) {
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

// The job, and sets of some of its ranks; by set, then by member.
struct Sets {
  // On one host.
  Sets(int size, const std::vector<std::vector<int>>& members)
      : members_(members) {
    for (auto& group : CreateInMemory(size)) {
      groups_.push_back(group.get());
      engines[0].push_back(
          Engine::Create(std::move(group), GpuOptionsOfTests()));
    }
    for (const std::vector<int>& ranks : members) AddSet(ranks, ranks);
  }
  // On hosts, each of which has a set of its own.
  Sets(int size, size_t num_hosts)
      : members_(Deal(size, static_cast<int>(num_hosts))) {
    engines[0] = MakeEnginesOnHosts(size, static_cast<int>(num_hosts),
                                    GpuOptionsOfTests(), &groups_);
    for (const std::vector<int>& ranks : members_) {
      std::vector<int> on_host(ranks.size());
      std::iota(on_host.begin(), on_host.end(), 0);
      AddSet(ranks, on_host);
    }
  }
  // The sets end before the job.
  ~Sets() {
    for (auto it = engines.rbegin(); it != engines.rend(); ++it) it->clear();
  }

  // Each rank makes all calls of all its sets at once.
  void CallOften() const {
    struct Part {
      int rank;
      int set;
      const Engines* engines;
      Engine* engine;
    };
    std::vector<Part> parts;
    for (size_t set = 0; set < engines.size(); ++set) {
      for (size_t i = 0; i < engines[set].size(); ++i) {
        const int rank = set == 0 ? static_cast<int>(i) : members_[set - 1][i];
        parts.push_back({rank, static_cast<int>(set), &engines[set],
                         engines[set][i].get()});
      }
    }
    RunOnThreads(static_cast<int>(parts.size()), [&parts](int which) {
      const Part& part = parts[static_cast<size_t>(which)];
      CallInSet(part.rank, part.set, static_cast<int>(part.engines->size()),
                part.engine);
    });
  }

  std::array<Engines, 4> engines;

 private:
  // `on_host`: the members' numbers on their host.
  void AddSet(const std::vector<int>& ranks, const std::vector<int>& on_host) {
    auto groups = CreateInMemory(static_cast<int>(ranks.size()));
    Engines* const of_set = &engines[++num_sets_];
    for (size_t i = 0; i < ranks.size(); ++i) {
      Membership* const of_job =
          groups_[static_cast<size_t>(ranks[i])]->membership();
      // It outlives the set.
      groups[i]->membership()->BindToJob({std::shared_ptr<void>(), of_job},
                                         on_host);
      EngineOptions options = GpuOptionsOfTests();
      options.global_ranks = ranks;
      of_set->push_back(Engine::Create(std::move(groups[i]), options));
    }
  }

  const std::vector<std::vector<int>> members_;
  std::vector<HostGroup*> groups_;  // of the job
  size_t num_sets_ = 0;
};

TEST_CASE_FIXTURE(AloneOnGpus, "overlapping sets launch in one order") {
  // Each two of them share a rank: 0 and 1, 1 and 2, 2 and 0.
  Sets(3, {{0, 1}, {1, 2}, {0, 2}}).CallOften();
}

TEST_CASE_FIXTURE(AloneOnGpus, "the job launches in one order with its hosts") {
  Sets(4, size_t{2}).CallOften();
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
