#include "tf_ops/host/in_memory/in_memory.h"

#include <cstdlib>
#include <new>
#include <string>

#include "tf_ops/host/region.h"

namespace hvd {

std::shared_ptr<void> AllocateRegion(const RegionShape& shape) {
  const size_t num_bytes = (RegionView::Bytes(shape) + 4095) / 4096 * 4096;
  void* memory = std::aligned_alloc(4096, num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::shared_ptr<void> shared(memory, std::free);
  RegionView::Initialize(shape, std::string(), memory);
  return shared;
}

std::vector<std::unique_ptr<HostGroup>> CreateInMemory(const RegionShape& shape,
                                                       uint64_t epoch) {
  const std::shared_ptr<void> memory = AllocateRegion(shape);
  std::vector<std::unique_ptr<HostGroup>> groups;
  for (int member = 0; member < shape.num_members(); ++member) {
    groups.push_back(std::make_unique<HostGroup>(memory, member, epoch));
  }
  return groups;
}

}  // namespace hvd
