#include "tf_ops/host/in_memory/in_memory.h"

#include <cstdlib>
#include <new>
#include <string>

#include "tf_ops/host/region.h"

namespace hvd {

std::shared_ptr<void> AllocateRegion(int size) {
  const size_t num_bytes = (RegionView::Bytes(size) + 4095) / 4096 * 4096;
  void* memory = std::aligned_alloc(4096, num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::shared_ptr<void> shared(memory, std::free);
  RegionView(memory).Initialize(size, std::string());
  return shared;
}

std::vector<std::unique_ptr<HostGroup>> CreateInMemory(int size,
                                                       uint64_t epoch) {
  const std::shared_ptr<void> memory = AllocateRegion(size);
  std::vector<std::unique_ptr<HostGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(std::make_unique<HostGroup>(memory, rank, epoch));
  }
  return groups;
}

}  // namespace hvd
