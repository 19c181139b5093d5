// A CUDA runtime over host memory, for tests on machines without a GPU: the
// functions that hvd_keras uses, with streams that run at their own pace.
//
// Settings: FAKE_GPU_COUNT (8), FAKE_GPU_MEMORY (bytes a device, 8 GiB),
// FAKE_CUDA_VERSION (12090), FAKE_GPU_JITTER_US (each piece of work on a stream
// waits up to so long first).
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "tests/gpu/fake/fake_stream.h"
#include "tf_ops/transport/nccl/cuda_api.h"

namespace fake {
namespace {

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue
constexpr int kNoDevice = 100;    // cudaErrorNoDevice
constexpr int kInvalidDevice = 101;

struct Block {
  size_t num_bytes;
  int device;
};

struct Machine {
  std::mutex mu;
  std::map<const char*, Block> blocks;
  std::map<int, size_t> used;
  std::map<int, Stream*> default_streams;
  std::set<Stream*> streams;
};

Machine& TheMachine() {
  static auto* const machine = new Machine();
  return *machine;
}

thread_local int current_device = 0;
thread_local std::vector<int> outer_devices;  // of contexts that were pushed
std::atomic<int> last_error{hvd::kCudaSuccess};

int NumDevices() {
  static const int count = static_cast<int>(Setting("FAKE_GPU_COUNT", 8));
  return count;
}

size_t Capacity() {
  static const auto bytes =
      static_cast<size_t>(Setting("FAKE_GPU_MEMORY", int64_t{8} << 30));
  return bytes;
}

int Version() {
  static const int version =
      static_cast<int>(Setting("FAKE_CUDA_VERSION", 12090));
  return version;
}

int Fail(int error) {
  last_error.store(error);
  return error;
}

void CopyOn(Stream* stream, void* to, const void* from, size_t num_bytes) {
  stream->Push([=] { std::memmove(to, from, num_bytes); });
}

}  // namespace

int CurrentDevice() { return current_device; }

Stream* StreamOf(void* handle) {
  if (handle != nullptr) return static_cast<Stream*>(handle);
  Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  Stream*& stream = machine.default_streams[current_device];
  if (stream == nullptr) {
    stream = new Stream(current_device);
    machine.streams.insert(stream);
  }
  return stream;
}

Stream::Stream(int device) : device_(device), thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Push(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mu_);
  queue_.push(std::move(work));
  changed_.notify_all();
}

void Stream::Synchronize() {
  std::unique_lock<std::mutex> lock(mu_);
  while (is_busy_ || !queue_.empty()) changed_.wait(lock);
}

void Stream::Run() {
  static const int64_t jitter_us = Setting("FAKE_GPU_JITTER_US", 0);
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    while (queue_.empty() && !stop_) changed_.wait(lock);
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop();
    is_busy_ = true;
    lock.unlock();
    SleepSome(jitter_us);
    work();
    work = nullptr;
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace fake

using fake::CopyOn;
using fake::Fail;
using fake::Log;
using fake::StreamOf;
using fake::TheMachine;

extern "C" {

int cudaRuntimeGetVersion(int* version) {
  *version = fake::Version();
  return 0;
}

int cudaDriverGetVersion(int* version) {
  *version = fake::Version();
  return 0;
}

const char* cudaGetErrorString(int error) {
  switch (error) {
    case hvd::kCudaOutOfMemory:
      return "out of memory";
    case fake::kNoDevice:
      return "no CUDA-capable device is detected";
    case fake::kInvalidDevice:
      return "invalid device ordinal";
    case hvd::kCudaNotReady:
      return "device not ready";
    default:
      return "invalid argument";
  }
}

int cudaGetLastError() { return fake::last_error.exchange(0); }

int cudaGetDeviceCount(int* count) {
  *count = fake::NumDevices();
  return *count > 0 ? 0 : Fail(fake::kNoDevice);
}

int cudaGetDevice(int* device) {
  *device = fake::current_device;
  return 0;
}

int cudaSetDevice(int device) {
  Log("cudaSetDevice");
  if (device < 0 || device >= fake::NumDevices()) {
    return Fail(fake::kInvalidDevice);
  }
  fake::current_device = device;
  return 0;
}

// The driver's. A context is the number of its device, plus one.
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device + 1));
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  fake::outer_devices.push_back(fake::current_device);
  fake::current_device =
      static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (fake::outer_devices.empty()) return Fail(fake::kInvalidValue);
  *context =
      reinterpret_cast<void*>(static_cast<intptr_t>(fake::current_device + 1));
  fake::current_device = fake::outer_devices.back();
  fake::outer_devices.pop_back();
  return 0;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

int cudaMemGetInfo(size_t* free, size_t* total) {
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  *total = fake::Capacity();
  *free = *total - machine.used[fake::current_device];
  return 0;
}

int cudaMalloc(void** pointer, size_t num_bytes) {
  Log("cudaMalloc");
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  size_t& used = machine.used[fake::current_device];
  if (num_bytes > fake::Capacity() - used) return Fail(hvd::kCudaOutOfMemory);
  const size_t space = (num_bytes + 511) / 256 * 256;
  auto* const block = static_cast<char*>(std::aligned_alloc(256, space));
  // Garbage, so that nobody leans on zeros; not all, which would take long.
  std::memset(block, 0xa5, num_bytes < 65536 ? num_bytes : 65536);
  machine.blocks[block] = {num_bytes, fake::current_device};
  used += num_bytes;
  *pointer = block;
  return 0;
}

static void SynchronizeDevice(int device) {
  std::vector<fake::Stream*> streams;
  {
    fake::Machine& machine = TheMachine();
    std::lock_guard<std::mutex> lock(machine.mu);
    for (fake::Stream* stream : machine.streams) {
      if (stream->device() == device) streams.push_back(stream);
    }
  }
  for (fake::Stream* stream : streams) stream->Synchronize();
}

int cudaDeviceSynchronize() {
  Log("cudaDeviceSynchronize");
  SynchronizeDevice(fake::current_device);
  return 0;
}

// Waits for the device, as the real one does.
int cudaFree(void* pointer) {
  Log("cudaFree");
  if (pointer == nullptr) return 0;
  SynchronizeDevice(fake::current_device);
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  const auto found = machine.blocks.find(static_cast<char*>(pointer));
  if (found == machine.blocks.end()) return Fail(fake::kInvalidValue);
  machine.used[found->second.device] -= found->second.num_bytes;
  machine.blocks.erase(found);
  std::free(pointer);
  return 0;
}

int cudaPointerGetAttributes(hvd::CudaPointerAttributes* attributes,
                             const void* pointer) {
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  attributes->type = 0;
  auto block = machine.blocks.upper_bound(static_cast<const char*>(pointer));
  if (block == machine.blocks.begin()) return 0;
  --block;
  if (pointer < block->first + block->second.num_bytes) {
    attributes->type = hvd::kCudaMemoryTypeDevice;
    attributes->device = block->second.device;
  }
  return 0;
}

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  Log("cudaStreamCreateWithPriority");
  if (flags > 1 || priority > 0 || priority < -5) {
    return Fail(fake::kInvalidValue);
  }
  auto* const made = new fake::Stream(fake::current_device);
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  machine.streams.insert(made);
  *stream = made;
  return 0;
}

int cudaStreamDestroy(void* stream) {
  Log("cudaStreamDestroy");
  {
    fake::Machine& machine = TheMachine();
    std::lock_guard<std::mutex> lock(machine.mu);
    machine.streams.erase(static_cast<fake::Stream*>(stream));
  }
  delete static_cast<fake::Stream*>(stream);
  return 0;
}

int cudaStreamSynchronize(void* stream) {
  Log("cudaStreamSynchronize");
  StreamOf(stream)->Synchronize();
  return 0;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  Log("cudaStreamWaitEvent");
  if (flags != 0) return Fail(fake::kInvalidValue);
  auto* const waited = static_cast<fake::Event*>(event);
  const uint64_t number = waited->recorded();
  StreamOf(stream)->Push([=] { waited->Wait(number); });
  return 0;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  Log("cudaEventCreateWithFlags");
  if (flags > 3) return Fail(fake::kInvalidValue);
  *event = new fake::Event();
  return 0;
}

int cudaEventRecord(void* event, void* stream) {
  Log("cudaEventRecord");
  if (StreamOf(stream)->device() != fake::current_device) {
    return Fail(fake::kInvalidValue);
  }
  auto* const recorded = static_cast<fake::Event*>(event);
  const uint64_t number = recorded->Record();
  StreamOf(stream)->Push([=] { recorded->Complete(number); });
  return 0;
}

int cudaEventQuery(void* event) {
  Log("cudaEventQuery");
  return static_cast<fake::Event*>(event)->is_over() ? 0 : hvd::kCudaNotReady;
}

int cudaEventSynchronize(void* event) {
  Log("cudaEventSynchronize");
  auto* const waited = static_cast<fake::Event*>(event);
  waited->Wait(waited->recorded());
  return 0;
}

int cudaEventDestroy(void* event) {
  Log("cudaEventDestroy");
  delete static_cast<fake::Event*>(event);
  return 0;
}

int cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, int kind,
                    void* stream) {
  Log("cudaMemcpyAsync");
  if (kind < 0 || kind > hvd::kCudaMemcpyDefault) {
    return Fail(fake::kInvalidValue);
  }
  CopyOn(StreamOf(stream), to, from, num_bytes);
  return 0;
}

// In CUDA 13 the stream is the eighth argument, before there was another one.
int cudaMemcpyBatchAsync(void** to, void** from, size_t* num_bytes,
                         size_t count, hvd::CudaMemcpyAttributes* attributes,
                         size_t* indices, size_t num_attributes, void* eighth,
                         void* ninth) {
  Log("cudaMemcpyBatchAsync");
  void* const stream = fake::Version() >= 13000 ? eighth : ninth;
  if (num_attributes != 1 || indices[0] != 0 ||
      attributes->source_access_order != 1 || stream == nullptr) {
    return Fail(fake::kInvalidValue);
  }
  for (size_t i = 0; i < count; ++i) {
    CopyOn(StreamOf(stream), to[i], from[i], num_bytes[i]);
  }
  return 0;
}

int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  StreamOf(stream)->Push([=] { function(argument); });
  return 0;
}

// ---- For tests alone ----

// A kernel that is slow: after `delay_us`, copies.
int fakeCopyLater(void* to, const void* from, size_t num_bytes,
                  int64_t delay_us, void* stream) {
  StreamOf(stream)->Push([=] {
    ::usleep(static_cast<useconds_t>(delay_us));
    std::memmove(to, from, num_bytes);
  });
  return 0;
}

}  // extern "C"
