// A CUDA runtime over host memory, for tests on machines without a GPU: the
// functions that hvd_keras uses, with streams that run at their own pace.
//
// Settings: FAKE_GPU_COUNT (8), FAKE_GPU_SLICES (how many of these devices are
// slices of one GPU, 1), FAKE_CUDA_VERSION (12090), FAKE_CUDA_DRIVER
// (the same), FAKE_GPU_CAPABILITY (9), FAKE_GPU_JITTER_US (the longest pause
// before each piece of work on a stream).
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/fake/fake_stream.h"
#include "tf_ops/gpu/cuda_api.h"

namespace fake {
namespace {

constexpr int kNewerDriver = 36;  // cudaErrorCallRequiresNewerDriver
constexpr int kNoDevice = 100;    // cudaErrorNoDevice
constexpr int kInvalidDevice = 101;

struct Machine {
  std::mutex mu;
  std::map<int, Stream*> default_streams;
  // Who waits for a stream holds it too: another thread may destroy it.
  std::map<void*, std::shared_ptr<Stream>> streams;
};

Machine& TheMachine() {
  static auto* const machine = new Machine();
  return *machine;
}

thread_local int current_device = 0;
thread_local int next_record = 0;  // its error, if not 0
thread_local int last_error = hvd::kCudaSuccess;

std::atomic<int> num_overlaps{0};
std::atomic<int64_t> copy_us{0};  // how long a call takes that copies
std::atomic<int64_t> batch_us{0};

void Sleep(int64_t us) { ::usleep(static_cast<useconds_t>(us)); }

int NumDevices() { return static_cast<int>(Devices().size()); }

int Version() {
  static const int version =
      static_cast<int>(Setting("FAKE_CUDA_VERSION", 12090));
  return version;
}

int DriverVersion() {
  static const int version =
      static_cast<int>(Setting("FAKE_CUDA_DRIVER", Version()));
  return version;
}

void CopyOn(Stream* stream, void* to, const void* from, size_t num_bytes) {
  stream->Push([=] {
    if (NumCollectivesOn(stream->device()).load() > 0) ++num_overlaps;
    std::memmove(to, from, num_bytes);
  });
}

}  // namespace

int NumPhysical() {
  static const int count = static_cast<int>(Setting("FAKE_GPU_COUNT", 8));
  return count;
}

// Like CUDA, it reads CUDA_VISIBLE_DEVICES once.
const std::vector<int>& Devices() {
  static const std::vector<int> devices = [] {
    std::vector<int> found;
    const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
    std::istringstream entries(text == nullptr ? "" : text);
    std::string entry;
    for (int i = 0; text == nullptr && i < NumPhysical(); ++i) {
      found.push_back(i);
    }
    while (std::getline(entries, entry, ',')) {
      const int device = std::atoi(entry.c_str());
      if (device < 0 || device >= NumPhysical()) break;
      found.push_back(device);
    }
    return found;
  }();
  return devices;
}

int CurrentDevice() { return current_device; }
void SetCurrentDevice(int device) { current_device = device; }

int Fail(int error) {
  last_error = error;
  return error;
}

std::atomic<int>& NumCollectivesOn(int device) {
  static std::atomic<int> counts[64];
  return counts[device];
}

Stream* StreamOf(void* handle) {
  if (handle != nullptr) return static_cast<Stream*>(handle);
  Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  Stream*& stream = machine.default_streams[current_device];
  if (stream == nullptr) {
    const auto made = std::make_shared<Stream>(current_device);
    stream = made.get();
    machine.streams[stream] = made;
  }
  return stream;
}

void SynchronizeDevice(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    Machine& machine = TheMachine();
    std::lock_guard<std::mutex> lock(machine.mu);
    for (const auto& [handle, stream] : machine.streams) {
      if (stream->device() == device) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Synchronize();
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
  *version = fake::DriverVersion();
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

int cudaGetLastError() { return std::exchange(fake::last_error, 0); }

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

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != hvd::kCudaComputeCapabilityMajor ||
      device >= fake::NumDevices()) {
    return Fail(fake::kInvalidValue);
  }
  *value = static_cast<int>(fake::Setting("FAKE_GPU_CAPABILITY", 9));
  return 0;
}

int cudaDeviceGetPCIBusId(char* id, int capacity, int device) {
  if (device < 0 || device >= fake::NumDevices()) {
    return Fail(fake::kInvalidDevice);
  }
  const int number = fake::Devices()[static_cast<size_t>(device)];
  const int slices = static_cast<int>(fake::Setting("FAKE_GPU_SLICES", 1));
  std::snprintf(id, static_cast<size_t>(capacity), "0000:%02X:00.0",
                0x1a + number / slices);
  return 0;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

int cudaDeviceSynchronize() {
  Log("cudaDeviceSynchronize");
  fake::SynchronizeDevice(fake::current_device);
  return 0;
}

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  Log("cudaStreamCreateWithPriority");
  if (flags > 1 || priority > 0 || priority < -5) {
    return Fail(fake::kInvalidValue);
  }
  const auto made = std::make_shared<fake::Stream>(fake::current_device);
  fake::Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mu);
  machine.streams[made.get()] = made;
  *stream = made.get();
  return 0;
}

int cudaStreamDestroy(void* stream) {
  Log("cudaStreamDestroy");
  std::shared_ptr<fake::Stream> last;
  {
    fake::Machine& machine = TheMachine();
    std::lock_guard<std::mutex> lock(machine.mu);
    const auto found = machine.streams.find(stream);
    if (found == machine.streams.end()) return Fail(fake::kInvalidValue);
    last = std::move(found->second);
    machine.streams.erase(found);
  }
  last->Synchronize();
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
  const auto mark = static_cast<fake::Event*>(event)->last();
  if (mark != nullptr) StreamOf(stream)->Push([mark] { mark->Wait(); });
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
  if (fake::next_record != 0) return Fail(std::exchange(fake::next_record, 0));
  if (StreamOf(stream)->device() != fake::current_device) {
    return Fail(fake::kInvalidValue);
  }
  const auto mark = static_cast<fake::Event*>(event)->Record();
  StreamOf(stream)->Push([mark] { mark->Reach(); });
  return 0;
}

int cudaEventQuery(void* event) {
  Log("cudaEventQuery");
  const auto mark = static_cast<fake::Event*>(event)->last();
  const bool is_over = mark == nullptr || mark->is_reached();
  return is_over ? 0 : Fail(hvd::kCudaNotReady);
}

int cudaEventSynchronize(void* event) {
  Log("cudaEventSynchronize");
  const auto mark = static_cast<fake::Event*>(event)->last();
  if (mark != nullptr) mark->Wait();
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
  fake::Sleep(fake::copy_us.load());
  CopyOn(StreamOf(stream), to, from, num_bytes);
  return 0;
}

// The stream is the eighth argument in CUDA 13, and the ninth before that. A
// declared ninth would be a place of ours: the compiler may write to it, also
// where the caller passes eight, and there it holds something of the caller's.
int cudaMemcpyBatchAsync(void** to, void** from, size_t* num_bytes,
                         size_t count, hvd::CudaMemcpyAttributes* attributes,
                         size_t* indices, size_t num_attributes, void* eighth,
                         ...) {
  Log("cudaMemcpyBatchAsync");
  if (fake::DriverVersion() < 12080) return Fail(fake::kNewerDriver);
  void* stream = eighth;
  if (fake::Version() < 13000) {
    va_list rest;
    va_start(rest, eighth);
    stream = va_arg(rest, void*);
    va_end(rest);
  }
  if (num_attributes != 1 || indices[0] != 0 ||
      attributes->source_access_order != 1 || stream == nullptr) {
    return Fail(fake::kInvalidValue);
  }
  fake::Sleep(fake::batch_us.load());
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

// A slow kernel: copies after `delay_us`.
int fakeCopyLater(void* to, const void* from, size_t num_bytes,
                  int64_t delay_us, void* stream) {
  StreamOf(stream)->Push([=] {
    ::usleep(static_cast<useconds_t>(delay_us));
    std::memmove(to, from, num_bytes);
  });
  return 0;
}

// From now on a call that copies takes so long, one that copies a batch so.
void fakeCudaSlowCopies(int64_t each_us, int64_t all_us) {
  fake::copy_us.store(each_us);
  fake::batch_us.store(all_us);
}

// The next cudaEventRecord of this thread fails with `error`.
void fakeCudaFailRecord(int error) { fake::next_record = error; }

// How many copies have run during a collective on the same GPU.
int fakeCudaNumOverlaps() { return fake::num_overlaps.load(); }

}  // extern "C"
