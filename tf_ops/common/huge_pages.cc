#include "tf_ops/common/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace hvd {

void AdviseHugePages(void* memory, size_t num_bytes) {
  constexpr size_t kWorthIt = 4 << 20;
  constexpr uintptr_t kPageBytes = 4096;
  if (num_bytes < kWorthIt) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t end = (begin + num_bytes) / kPageBytes * kPageBytes;
  (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace hvd
