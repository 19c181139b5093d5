#include "tf_ops/host/in_memory/in_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace hvd {

std::vector<std::unique_ptr<InMemoryTransport>> InMemoryTransport::CreateGroup(
    int size) {
  const size_t num_bytes = (RegionView::Bytes(size) + 4095) / 4096 * 4096;
  void* memory = std::aligned_alloc(4096, num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::shared_ptr<void> shared(memory, std::free);
  RegionView(memory).Initialize(size, std::string());
  std::vector<std::unique_ptr<InMemoryTransport>> group;
  for (int rank = 0; rank < size; ++rank) {
    group.emplace_back(new InMemoryTransport(shared, rank));
  }
  return group;
}

}  // namespace hvd
