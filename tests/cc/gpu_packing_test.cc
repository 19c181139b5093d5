// How small tensors on fake GPUs are reduced: as was quickest when they met.
#include "tf_ops/engine/gpu_packing.h"

#include <sstream>

#include "tests/cc/gpu_util.h"

namespace hvd {
namespace {

constexpr int kNumTensors = 8;
constexpr int64_t kSlowUs = 20000;

// After each test, the fakes are as before.
struct SlowGpus : FakeGpus {
  ~SlowGpus() {
    UseFakes().slow_copies(0, 0);
    UseFakes().slow_calls(0);
  }
};

int Count(const std::string& log, const std::string& function) {
  std::istringstream words(log);
  int count = 0;
  for (std::string word; words >> word;) count += word == function ? 1 : 0;
  return count;
}

// What two ranks call to sum kNumTensors tensors, after their first collective.
std::string CallsOf(const EngineOptions& options) {
  const Engines engines = MakeEngines(2, options);
  const auto sum = [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, std::vector<Values>(
                              kNumTensors, Fill(DataType::kFloat32, {9}, 1)));
    REQUIRE_OK(
        call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a")).get());
    for (size_t i = 0; i < kNumTensors; ++i) {
      CHECK(call.Output(i).numbers[8] == 2);
    }
  };
  RunRanks(engines, sum);
  UseFakes().log_start();
  RunRanks(engines, sum);
  std::string log(UseFakes().log_stop(nullptr, 0) + 1, '\0');
  UseFakes().log_stop(log.data(), log.size());
  return log;
}

EngineOptions Measuring() {
  EngineOptions options = GpuOptionsOfTests();
  options.gpu.packing.reset();
  return options;
}

void CheckNone(const std::string& log) {
  CHECK(Count(log, "ncclAllReduce") == 2 * kNumTensors);
  CHECK(Count(log, "cudaMemcpyAsync") == 0);
  CHECK(Count(log, "cudaMemcpyBatchAsync") == 0);
}
void CheckBatch(const std::string& log) {
  CHECK(Count(log, "ncclAllReduce") == 2);
  CHECK(Count(log, "cudaMemcpyAsync") == 0);
  CHECK(Count(log, "cudaMemcpyBatchAsync") == 2 * 2);
}
void CheckCopies(const std::string& log) {
  CHECK(Count(log, "ncclAllReduce") == 2);
  CHECK(Count(log, "cudaMemcpyAsync") == 2 * 2 * kNumTensors);
  CHECK(Count(log, "cudaMemcpyBatchAsync") == 0);
}

TEST_CASE_FIXTURE(SlowGpus, "small tensors stay where copies are slow") {
  UseFakes().slow_copies(500, kSlowUs);
  CheckNone(CallsOf(Measuring()));
}

TEST_CASE_FIXTURE(SlowGpus, "they are packed where calls of NCCL are slow") {
  UseFakes().slow_copies(500, 0);
  UseFakes().slow_calls(500);
  CheckBatch(CallsOf(Measuring()));
}

TEST_CASE_FIXTURE(SlowGpus, "they are copied one by one if that is quicker") {
  UseFakes().slow_copies(0, 2 * kSlowUs);
  UseFakes().slow_calls(1000);
  CheckCopies(CallsOf(Measuring()));
}

TEST_CASE_FIXTURE(SlowGpus, "a setting needs no measurement") {
  UseFakes().slow_copies(500, kSlowUs);
  EngineOptions options = GpuOptionsOfTests();
  CheckBatch(CallsOf(options));
  options.gpu.packing = Packing::kCopies;
  CheckCopies(CallsOf(options));
  options.gpu.packing = Packing::kNone;
  CheckNone(CallsOf(options));
}

}  // namespace
}  // namespace hvd
