// Collectives on fake GPUs through whole engines, as threads: fused sequences
// behind slow streams, and all that can go wrong. tests/gpu checks values of
// all kinds and types.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "tests/cc/gpu_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

// Tensors smaller and larger than what goes through the fusion buffer, in
// another order on each rank, behind streams that are late.
void TestFusedSequences(int size) {
  const Engines engines = MakeEngines(size, GpuOptionsOfTests());
  RunRanks(engines, [size](int rank, Engine* engine) {
    UserGpu gpu(rank);
    std::mt19937 common(7);  // the same on all ranks
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int round = 0; round < 4; ++round) {
      std::vector<GpuTensors> calls;
      std::vector<size_t> order;
      for (int i = 0; i < 24; ++i) {
        const auto elements = static_cast<int64_t>(common() % 9000);
        calls.emplace_back(
            &gpu, std::vector<Values>{Fill(kFloat, {elements}, rank + i)});
        order.push_back(order.size());
      }
      std::shuffle(order.begin(), order.end(), own);
      std::vector<std::future<Status>> futures(calls.size());
      for (size_t i : order) {
        const std::string name = "t" + std::to_string(i);
        futures[i] =
            calls[i].Submit(engine, ARequest(CollectiveKind::kAllreduce, name),
                            own() % 8 == 0 ? 500 : 0);
      }
      for (size_t i = 0; i < calls.size(); ++i) {
        CHECK_OK(futures[i].get());
        CHECK(Differences(calls[i].Output(0).numbers, [size, i](size_t) {
                return size * (size - 1) / 2 + static_cast<int>(i) * size;
              }) == "");
      }
    }
  });
  CHECK(engines[0]->stats().num_collectives < 4 * 24 + 1);
}

TEST_CASE_FIXTURE(FakeGpus,
                  "a call ends with its stream, or at its launch if asked to") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {8}, 1)});
    const auto begin = Clock::now();
    REQUIRE_OK(call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a"),
                           rank == 0 ? 200000 : 0)
                   .get());
    // The other rank may have begun later.
    CHECK(
        (rank != 0 || Clock::now() - begin >= std::chrono::milliseconds(200)));
    CHECK(call.Output(0).numbers[7] == 2);
    // As soon as it is launched.
    Request request = ARequest(CollectiveKind::kAllreduce, "b");
    request.gpu.done_in_stream_order = true;
    const auto second = Clock::now();
    CHECK_OK(call.Submit(engine, request, 500000).get());
    CHECK(Clock::now() - second < std::chrono::milliseconds(400));
    UseFakes().stream_synchronize(gpu.stream());
    CHECK(call.Output(0).numbers[7] == 2);
  });
}

TEST_CASE_FIXTURE(FakeGpus,
                  "mistakes of one rank fail on all, and the engine lives") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    UserGpu other(rank + 4);
    const Request sum = ARequest(CollectiveKind::kAllreduce, "a");
    GpuTensors good(&gpu, {Fill(kFloat, {8}, 1)});
    CHECK_OK(good.Submit(engine, sum).get());
    const auto fails = [&](StatusCode code, const std::string& part,
                           const Status& status) {
      CHECK(status.code() == code);
      CHECK(Contains(status.message(), part));
      GpuTensors again(&gpu, {Fill(kFloat, {8}, rank)});
      CHECK_OK(again.Submit(engine, sum).get());
      CHECK(again.Output(0).numbers[0] == 1);
    };
    GpuTensors on_other(&other, {Fill(kFloat, {8}, 1)});
    fails(StatusCode::kMismatch,
          "ranks disagree on the device: a GPU on rank 0; a second GPU of the "
          "same rank on rank 1",
          (rank == 0 ? good : on_other).Submit(engine, sum).get());
    const Values values = Fill(kFloat, {8}, 1);
    fails(StatusCode::kMismatch, "a GPU on rank 0; the CPU on rank 1",
          rank == 0 ? good.Submit(engine, sum).get()
                    : Submit(engine, sum, {values}).get().status);
    GpuTensors whole(&gpu, {Fill(DataType::kInt64, {8}, 1)});
    Request scaled = sum;
    scaled.prescale = 0.5;
    fails(StatusCode::kInvalidArgument, "scale factors on GPUs need",
          whole.Submit(engine, scaled).get());
    Request adasum = sum;
    adasum.op = ReduceOp::kAdasum;
    fails(StatusCode::kInvalidArgument, "Adasum does not run on GPUs",
          good.Submit(engine, adasum).get());
  });
}

// A CUDA call fails when one rank submits: all ranks hear of it at once.
TEST_CASE_FIXTURE(FakeGpus,
                  "a CUDA failure of one rank fails the call on all") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    const Request sum = ARequest(CollectiveKind::kAllreduce, "a");
    for (int round = 0; round < 2; ++round) {  // new, and known to all ranks
      GpuTensors call(&gpu, {Fill(kFloat, {8}, 1)});
      if (rank == 1) UseFakes().fail_record(round == 0 ? 700 : 2);
      const auto begin = Clock::now();
      const Status status = call.Submit(engine, sum).get();
      CHECK(Clock::now() - begin < std::chrono::seconds(2));
      CHECK(status.code() == StatusCode::kInternal);
      CHECK(Contains(status.message(),
                     "allreduce 'a': rank 1 cannot take part: cudaEventRecord "
                     "failed on GPU 1"));
      // An illegal access ends CUDA for the process; other errors do not.
      const bool must_restart =
          status.message().find("restart the process") != std::string::npos;
      CHECK(must_restart == (round == 0));
      CHECK_OK(call.Submit(engine, sum).get());
      CHECK(call.Output(0).numbers[0] == 2);
    }
  });
}

TEST_CASE_FIXTURE(FakeGpus, "the next launch is packed while one is reduced") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  const int before = UseFakes().num_overlaps();
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    UserGpu other_stream(rank);
    const auto values = Fill(kFloat, {100}, 1);
    GpuTensors slow(&gpu, {values, values});
    GpuTensors quick(&other_stream, {values, values});
    // Rank 0 reduces, and waits for rank 1, which comes late.
    std::future<Status> first =
        slow.Submit(engine, ARequest(CollectiveKind::kAllreduce, "slow"),
                    rank == 1 ? 200000 : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::future<Status> second =
        quick.Submit(engine, ARequest(CollectiveKind::kAllreduce, "quick"));
    CHECK_OK(first.get());
    CHECK_OK(second.get());
    CHECK(quick.Output(1).numbers[99] == 2);
  });
  CHECK(UseFakes().num_overlaps() > before);
}

TEST_CASE_FIXTURE(FakeGpus, "out of memory on one rank fails the call on all") {
  Engines engines;
  for (auto& group : CreateInMemory(2)) {
    EngineOptions options = GpuOptionsOfTests();
    if (group->rank() == 1) {
      options.gpu.fusion_buffer_bytes = int64_t{1} << 40;
    }
    engines.push_back(Engine::Create(std::move(group), options));
  }
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    for (int round = 0; round < 2; ++round) {
      GpuTensors call(&gpu, {Fill(kFloat, {8}, 1)});
      const Status status =
          call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a")).get();
      CHECK(status.code() == StatusCode::kInternal);
      CHECK(Contains(status.message(), "rank 1 cannot run collectives"));
      CHECK(Contains(status.message(), "is out of memory: the fusion buffer"));
      // The engine goes on.
      Run(engine, ARequest(CollectiveKind::kBarrier, "b"), {});
    }
  });
}

TEST_CASE_FIXTURE(FakeGpus, "ranks join") {
  const Engines engines = MakeEngines(3, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    for (int i = 0; i < rank + 1; ++i) {
      GpuTensors call(&gpu, {Fill(kFloat, {5000}, 6), Fill(kFloat, {3}, 6)});
      REQUIRE_OK(
          call.Submit(engine, ARequest(CollectiveKind::kAllreduce,
                                       "a" + std::to_string(i), ReduceOp::kSum))
              .get());
      CHECK(call.Output(0).numbers[4999] == 6 * (3 - i));
      CHECK(call.Output(1).numbers[2] == 6 * (3 - i));
    }
    Run(engine, ARequest(CollectiveKind::kJoin, "join"), {});
  });
}

// The kernel waits for the dead rank.
TEST_CASE_FIXTURE(FakeGpus, "a death in the middle of a kernel") {
  const auto check = [](int rank, Engine* engine, const Status& status) {
    CHECK(Contains(status.message(), "allreduce 'b'"));
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    CHECK(call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "c"))
              .get()
              .code() == StatusCode::kPeerLost);
  };
  LoseTheLast(3, GpuOptionsOfTests(), {}, std::chrono::seconds(2), check);
}

// It leaves when its part is done, while the other rank's launch still runs.
TEST_CASE_FIXTURE(FakeGpus, "a rank may leave after its last call") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    const Request sum = ARequest(CollectiveKind::kAllreduce, "a");
    CHECK_OK(call.Submit(engine, sum).get());
    UseFakes().tell_late(0, 50000);
    CHECK_OK(call.Submit(engine, sum).get());
    CHECK(call.Output(0).numbers[49] == 2);
    engine->Shutdown("the rank has finished");
  });
  UseFakes().tell_late(-1, 0);
}

// A rank that has joined has too little memory for the second tensor: it frees
// that of the first.
TEST_CASE_FIXTURE(FakeGpus,
                  "out of memory after a join gives back what it took") {
  UserGpu joined(1);
  const size_t before = joined.FreeBytes();
  {
    EngineOptions options = GpuOptionsOfTests();
    Engines engines = MakeEngines(2, options);
    RunRanks(engines, [&joined](int rank, Engine* engine) {
      UserGpu gpu(rank);
      const Request sum = ARequest(CollectiveKind::kAllreduce, "a");
      GpuTensors call(&gpu, {Fill(kFloat, {500}, 1), Fill(kFloat, {90000}, 1)});
      CHECK_OK(call.Submit(engine, sum).get());
      if (rank == 0) {
        CHECK(!call.Submit(engine, sum).get().ok());
        return;
      }
      UserGpu hog(1);
      hog.Allocate(joined.FreeBytes() - 100000);
      CHECK(!Submit(engine, ARequest(CollectiveKind::kJoin, "join"), {})
                 .get()
                 .status.ok());
    });
  }
  CHECK(joined.FreeBytes() == before);
}

TEST_CASE_FIXTURE(FakeGpus, "an error of NCCL fails all ranks") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    std::future<Status> pending =
        call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a"), 1000000);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    UseFakes().inject(6);
    const Status status = pending.get();
    // The first rank to see it gives up, and the others because of it.
    CHECK(!status.ok());
    CHECK(Contains(status.message(), "remote process exited"));
    CHECK(!Submit(engine, ARequest(CollectiveKind::kBarrier, "b"), {})
               .get()
               .status.ok());
  });
  UseFakes().inject(0);
}

TEST_CASE_FIXTURE(FakeGpus, "shutdown in the middle of a kernel") {
  const Engines engines = MakeEngines(2, GpuOptionsOfTests());
  RunRanks(engines, [](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors call(&gpu, {Fill(kFloat, {50}, 1)});
    std::future<Status> pending =
        call.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a"), 1000000);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    engine->Shutdown("the test ends");
    const Status status = pending.get();
    CHECK((status.code() == StatusCode::kShutdown ||
           status.code() == StatusCode::kPeerLost));
  });
}

TEST_CASE_FIXTURE(FakeGpus, "fused sequences behind streams that are late") {
  for (int size : {1, 2, 4}) TestFusedSequences(size);
}

}  // namespace
}  // namespace hvd
