// Ranks on fake GPUs lose one of them while NCCL does what it does on real ones
// then: an abort hangs, a launch waits for the dead rank, memory of one rank is
// freed under the kernel of another.
#include <chrono>
#include <memory>

#include "tests/cc/gpu_util.h"
#include "tf_ops/gpu/communicator.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr DataType kFloat = DataType::kFloat32;
constexpr milliseconds kSoon{2500};

// After each test, the fakes are as before.
struct Losses : FakeGpus {
  ~Losses() {
    UseFakes().hang_aborts(-1, 0, 0);
    UseFakes().hold_groups(-1);
  }
};

TEST_CASE_FIXTURE(Losses, "an abort that hangs holds up no request") {
  UseFakes().hang_aborts(0, 4000000, /*is_deaf=*/1);
  LoseTheLast(
      3, GpuOptionsOfTests(), {}, kSoon, [](int, Engine* engine, Status) {
        const auto begin = Clock::now();
        CHECK(!Submit(engine, ARequest(CollectiveKind::kBarrier, "b"), {})
                   .get()
                   .status.ok());
        CHECK(Clock::now() - begin < kSoon);
      });
}

TEST_CASE_FIXTURE(Losses,
                  "what NCCL does not free is left, and its GPU refused") {
  UseFakes().hang_aborts(0, 3000000, /*is_deaf=*/0);
  EngineOptions options = GpuOptionsOfTests();
  options.gpu.end_patience_ms = 100;
  LoseTheLast(2, options, {}, kSoon, [](int, Engine*, Status) {});
  const auto end = Clock::now() + milliseconds(3500);
  const auto run = [&options] {
    const Engines engines = MakeEngines(1, options);
    UserGpu gpu(0);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    return call
        .Submit(engines[0].get(), ARequest(CollectiveKind::kAllreduce, "a"))
        .get();
  };
  CHECK(Contains(run().message(), "Restart the process"));
  std::this_thread::sleep_until(end);
  CHECK_OK(run());  // it has ended after all
}

TEST_CASE_FIXTURE(Losses, "a slow abort does not count as one that hangs") {
  Gpu* gpu = nullptr;
  NcclUniqueId id = {};
  std::unique_ptr<Communicator> communicator;
  UserGpu user(0);  // opens CUDA
  REQUIRE_OK(Gpu::Get(0, &gpu));
  REQUIRE_OK(Communicator::MakeId(&id));
  REQUIRE_OK(Communicator::Create(
      gpu, id, 0, 1, [] { return Status::Ok(); }, &communicator));
  UseFakes().hang_aborts(0, 1000000, /*is_deaf=*/0);
  communicator->Abort(Status::Shutdown("a test"));
  CHECK_OK(gpu->CheckHanging());
  CHECK(!communicator->AwaitEnd(milliseconds(100)));
  CHECK(Contains(gpu->CheckHanging().message(), "Restart the process"));
  const auto begin = Clock::now();
  communicator.reset();  // it is left behind already
  CHECK(Clock::now() - begin < milliseconds(500));
  std::this_thread::sleep_for(milliseconds(1500));
  CHECK_OK(gpu->CheckHanging());
}

// After `num_before` launches one of rank 0 waits for rank 1, which is lost.
void LoseInLaunch(int num_before) {
  std::vector<HostGroup*> groups;
  const Engines engines = MakeEngines(2, GpuOptionsOfTests(), &groups);
  const int num_held = UseFakes().num_held();
  RunRanks(engines, [&](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    const Request sum = ARequest(CollectiveKind::kAllreduce, "a");
    for (int i = 0; i < num_before; ++i) {
      REQUIRE_OK(call.Submit(engine, sum).get());
    }
    Run(engine, ARequest(CollectiveKind::kBarrier, "b"), {});
    if (rank == 0) UseFakes().hold_groups(0);
    Run(engine, ARequest(CollectiveKind::kBarrier, "c"), {});
    std::future<Status> pending = call.Submit(engine, sum);
    while (UseFakes().num_held() == num_held) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::this_thread::sleep_for(milliseconds(200));
    const auto begin = Clock::now();
    FindDead(groups[static_cast<size_t>(rank)]->membership(), 1 - rank);
    CHECK(pending.get().code() == StatusCode::kPeerLost);
    CHECK(Clock::now() - begin < kSoon);
  });
}

TEST_CASE_FIXTURE(Losses, "a launch that waits for a lost rank is aborted") {
  LoseInLaunch(1);
}
TEST_CASE_FIXTURE(Losses, "the first launch that waits is aborted too") {
  LoseInLaunch(0);
}

TEST_CASE_FIXTURE(Losses, "survivors meet before they free what they share") {
  const int before = UseFakes().num_early_frees();
  LoseTheLast(4, GpuOptionsOfTests(), milliseconds(200), kSoon,
              [](int, Engine*, Status) {});
  CHECK(UseFakes().num_early_frees() == before);
}

// TensorFlow may wait for its stream in `done`, which here waits for a later
// collective, and so for the lost rank.
TEST_CASE_FIXTURE(Losses, "a callback that waits for the GPU is ended") {
  std::vector<HostGroup*> groups;
  const Engines engines = MakeEngines(2, GpuOptionsOfTests(), &groups);
  RunRanks(engines, [&groups](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors first(&gpu, {Fill(kFloat, {50}, 1)});
    GpuTensors second(&gpu, {Fill(kFloat, {50}, 1)});
    REQUIRE_OK(
        first.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a")).get());
    Request sum = ARequest(CollectiveKind::kAllreduce, "a");
    sum.gpu.done_in_stream_order = true;
    std::future<Status> early = first.Submit(engine, sum, 0, [&gpu] {
      std::this_thread::sleep_for(milliseconds(300));
      UseFakes().stream_synchronize(gpu.stream());
    });
    sum.name = "b";
    std::future<Status> late =
        second.Submit(engine, sum, rank == 1 ? 4000000 : 0);
    std::this_thread::sleep_for(milliseconds(500));
    const auto begin = Clock::now();
    FindDead(groups[static_cast<size_t>(rank)]->membership(), 1 - rank);
    if (rank == 0) {
      CHECK_OK(early.get());
      (void)late.get();
      CHECK(Clock::now() - begin < kSoon);
    } else {
      early.wait();  // its callback uses `gpu`
    }
  });
}

}  // namespace
}  // namespace hvd
