// Tensors on fake GPUs, and calls on them: see tests/gpu/fake.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/libraries.h"

#ifndef FAKE_GPU_LIBRARY  // of CMake; else of Bazel
#define FAKE_GPU_LIBRARY "tests/gpu/fake/libfake_gpu.so"
#endif

namespace hvd {

// Functions that only the fakes have.
struct Fakes {
  int (*copy_later)(void* to, const void* from, size_t num_bytes,
                    int64_t delay_us, void* stream);
  int (*stream_synchronize)(void* stream);
  int (*num_misuses)();
  void (*inject)(int result);
  void (*tell_late)(int device, int64_t microseconds);
  void (*hang_aborts)(int device, int64_t microseconds, int is_deaf);
  void (*hold_groups)(int device);
  int (*num_held)();
  int (*num_early_frees)();
  void (*run_alone)(int is_alone);
  void (*slow_copies)(int64_t each_us, int64_t all_us);
  void (*slow_calls)(int64_t microseconds);
  void (*log_start)();
  size_t (*log_stop)(char* text, size_t capacity);
  void (*fail_record)(int error);
  int (*num_overlaps)();
};

inline const Fakes& UseFakes() {
  static const Fakes fakes = [] {
    GpuLibraryPaths paths;
    paths.cuda_runtime = paths.nccl = FAKE_GPU_LIBRARY;
    SetGpuLibraryPaths(paths);
    const CudaApi* cuda = nullptr;
    REQUIRE_OK(OpenCudaRuntime(&cuda));
    void* const library = dlopen(FAKE_GPU_LIBRARY, RTLD_NOW);
    REQUIRE(library != nullptr);
    Fakes found{};
    const auto find = [library](const char* name, auto* function) {
      void* const symbol = dlsym(library, name);
      REQUIRE(symbol != nullptr);
      *reinterpret_cast<void**>(function) = symbol;
    };
    find("fakeCopyLater", &found.copy_later);
    find("cudaStreamSynchronize", &found.stream_synchronize);
    find("fakeNcclNumMisuses", &found.num_misuses);
    find("fakeNcclInject", &found.inject);
    find("fakeNcclTellLate", &found.tell_late);
    find("fakeNcclHangAborts", &found.hang_aborts);
    find("fakeNcclHoldGroups", &found.hold_groups);
    find("fakeNcclNumHeld", &found.num_held);
    find("fakeNcclNumEarlyFrees", &found.num_early_frees);
    find("fakeNcclRunAlone", &found.run_alone);
    find("fakeCudaSlowCopies", &found.slow_copies);
    find("fakeNcclSlowCalls", &found.slow_calls);
    find("fakeLogStart", &found.log_start);
    find("fakeLogStop", &found.log_stop);
    find("fakeCudaFailRecord", &found.fail_record);
    find("fakeCudaNumOverlaps", &found.num_overlaps);
    return found;
  }();
  return fakes;
}

inline EngineOptions GpuOptionsOfTests() {
  EngineOptions options = QuickOptions();
  options.gpu.fusion_buffer_bytes = 64 << 10;
  options.gpu.direct_bytes = 16 << 10;
  options.gpu.packing = Packing::kBatch;
  return options;
}

// GPUs of 64 MB each; after each test, checks that they were used correctly.
struct FakeGpus {
  FakeGpus() {
    setenv("FAKE_GPU_MEMORY", "67108864", 1);
    UseFakes();
  }
  ~FakeGpus() { CHECK(UseFakes().num_misuses() == 0); }
};

// A rank's GPU, its user's stream, and memory on it; for one thread.
class UserGpu {
 public:
  explicit UserGpu(int ordinal) {
    REQUIRE_OK(Gpu::Get(ordinal, &gpu_));
    REQUIRE_OK(gpu_->Use());
    REQUIRE_OK(gpu_->CreateStream(/*urgent=*/false, &stream_));
  }
  ~UserGpu() {
    UseFakes().stream_synchronize(stream_);
    CHECK_OK(gpu_->Use());
    for (void* memory : memory_) gpu_->Free(memory);
    gpu_->cuda().StreamDestroy(stream_);
  }

  void* Allocate(size_t num_bytes) {
    memory_.push_back(nullptr);
    REQUIRE_OK(gpu_->Use());
    REQUIRE_OK(gpu_->Allocate(num_bytes, "a test", &memory_.back()));
    return memory_.back();
  }
  size_t FreeBytes() {
    REQUIRE_OK(gpu_->Use());
    size_t free = 0;
    size_t total = 0;
    CHECK(gpu_->cuda().MemGetInfo(&free, &total) == 0);
    return free;
  }
  CudaStream stream() const { return stream_; }
  int ordinal() const { return gpu_->ordinal(); }

 private:
  Gpu* gpu_ = nullptr;
  CudaStream stream_ = nullptr;
  std::vector<void*> memory_;
};

// A call of one float tensor or more. The stream writes their values `delay_us`
// from now.
class GpuTensors {
 public:
  GpuTensors(UserGpu* gpu, const std::vector<Values>& inputs) : gpu_(gpu) {
    for (const Values& values : inputs) {
      values_.push_back(Pack(values));
      shapes_.push_back(values);
      inputs_.push_back(gpu->Allocate(values_.back().size()));
      outputs_.push_back(gpu->Allocate(values_.back().size()));
    }
  }

  ~GpuTensors() {
    if (gpu_ != nullptr) UseFakes().stream_synchronize(gpu_->stream());
  }
  GpuTensors(GpuTensors&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)),
        values_(std::move(other.values_)),
        shapes_(std::move(other.shapes_)),
        inputs_(std::move(other.inputs_)),
        outputs_(std::move(other.outputs_)) {}

  // `in_done`: runs in the callback.
  std::future<Status> Submit(
      Engine* engine, Request request, int64_t delay_us = 0,
      std::function<void()> in_done = [] {}) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      UseFakes().copy_later(inputs_[i], values_[i].data(), values_[i].size(),
                            i == 0 ? delay_us : 0, gpu_->stream());
      RequestTensor tensor;
      tensor.dtype = shapes_[i].dtype;
      tensor.shape = shapes_[i].shape;
      tensor.input = inputs_[i];
      tensor.output = outputs_[i];
      request.tensors.push_back(std::move(tensor));
    }
    request.gpu.ordinal = gpu_->ordinal();
    request.gpu.stream = gpu_->stream();
    auto promise = std::make_shared<std::promise<Status>>();
    request.done = [promise, in_done](const Status& status) {
      in_done();
      promise->set_value(status);
    };
    std::future<Status> future = promise->get_future();
    engine->Submit(std::move(request));
    return future;
  }

  Values Output(size_t i) const {
    std::vector<std::byte> bytes(values_[i].size());
    std::memcpy(bytes.data(), outputs_[i], bytes.size());
    return Unpack(shapes_[i].dtype, shapes_[i].shape, bytes);
  }

 private:
  UserGpu* gpu_;
  std::vector<std::vector<std::byte>> values_;
  std::vector<Values> shapes_;
  std::vector<void*> inputs_;
  std::vector<void*> outputs_;
};

// All ranks launch; kernels wait for that of the last rank, whose stream is
// late. Then rank r finds that rank dead, after r * `lag`. The call fails
// within `limit`. Calls check(rank, engine, outcome).
inline void LoseTheLast(
    int size, const EngineOptions& options, std::chrono::milliseconds lag,
    std::chrono::milliseconds limit,
    const std::function<void(int rank, Engine*, const Status&)>& check) {
  constexpr DataType kFloat = DataType::kFloat32;
  std::vector<HostGroup*> groups;
  const Engines engines = MakeEngines(size, options, &groups);
  RunRanks(engines, [&](int rank, Engine* engine) {
    UserGpu gpu(rank);
    GpuTensors first(&gpu, {Fill(kFloat, {50}, 1)});
    GpuTensors second(&gpu, {Fill(kFloat, {50}, 1)});
    REQUIRE_OK(
        first.Submit(engine, ARequest(CollectiveKind::kAllreduce, "a")).get());
    const bool is_lost = rank == size - 1;
    std::future<Status> pending =
        second.Submit(engine, ARequest(CollectiveKind::kAllreduce, "b"),
                      is_lost ? 2000000 : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200) + rank * lag);
    const auto begin = Clock::now();
    FindDead(groups[static_cast<size_t>(rank)]->membership(),
             is_lost ? 0 : size - 1);
    const Status status = pending.get();
    CHECK(status.code() == StatusCode::kPeerLost);
    CHECK(Clock::now() - begin < limit);
    check(rank, engine, status);
  });
}

}  // namespace hvd
