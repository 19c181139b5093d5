// Memory of the fake GPUs: pieces of host memory that know their device.
//
// Setting: FAKE_GPU_MEMORY (bytes a device, 8 GiB).
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/gpu/fake/fake_stream.h"
#include "tf_ops/gpu/cuda_api.h"

namespace fake {
namespace {

struct Block {
  size_t num_bytes;
  int device;
};

struct Memory {
  std::mutex mu;
  std::map<const char*, Block> blocks;
  std::map<int, size_t> used;
};

Memory& TheMemory() {
  static auto* const memory = new Memory();
  return *memory;
}

size_t Capacity() {
  static const auto bytes =
      static_cast<size_t>(Setting("FAKE_GPU_MEMORY", int64_t{8} << 30));
  return bytes;
}

}  // namespace
}  // namespace fake

using fake::Fail;
using fake::Log;
using fake::StreamOf;

extern "C" {

int cudaMemGetInfo(size_t* free, size_t* total) {
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mu);
  *total = fake::Capacity();
  *free = *total - memory.used[fake::CurrentDevice()];
  return 0;
}

int cudaMalloc(void** pointer, size_t num_bytes) {
  Log("cudaMalloc");
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mu);
  size_t& used = memory.used[fake::CurrentDevice()];
  if (num_bytes > fake::Capacity() - used) return Fail(hvd::kCudaOutOfMemory);
  const size_t space = (num_bytes + 511) / 256 * 256;
  auto* const block = static_cast<char*>(std::aligned_alloc(256, space));
  // Garbage, so that nobody relies on zeros; only the start, to save time.
  std::memset(block, 0xa5, num_bytes < 65536 ? num_bytes : 65536);
  memory.blocks[block] = {num_bytes, fake::CurrentDevice()};
  used += num_bytes;
  *pointer = block;
  return 0;
}

static int Release(void* pointer) {
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mu);
  const auto found = memory.blocks.find(static_cast<char*>(pointer));
  if (found == memory.blocks.end()) return Fail(fake::kInvalidValue);
  memory.used[found->second.device] -= found->second.num_bytes;
  memory.blocks.erase(found);
  std::free(pointer);
  return 0;
}

// Waits for the device, as the real one does.
int cudaFree(void* pointer) {
  Log("cudaFree");
  if (pointer == nullptr) return 0;
  fake::SynchronizeDevice(fake::CurrentDevice());
  return Release(pointer);
}

int cudaMallocAsync(void** pointer, size_t num_bytes, void*) {
  return cudaMalloc(pointer, num_bytes);
}

int cudaFreeAsync(void* pointer, void* stream) {
  StreamOf(stream)->Push([pointer] { Release(pointer); });
  return 0;
}

int cudaPointerGetAttributes(hvd::CudaPointerAttributes* attributes,
                             const void* pointer) {
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mu);
  attributes->type = 0;
  auto block = memory.blocks.upper_bound(static_cast<const char*>(pointer));
  if (block == memory.blocks.begin()) return 0;
  --block;
  if (pointer < block->first + block->second.num_bytes) {
    attributes->type = hvd::kCudaMemoryTypeDevice;
    attributes->device = block->second.device;
  }
  return 0;
}

}  // extern "C"
