#include "tf_ops/host/region.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hvd {
namespace {

constexpr uint64_t kMagic = 0x6876645f6b657261;  // "hvd_kera"
constexpr uint32_t kLayoutVersion = 3;

}  // namespace

void RegionView::Initialize(int size, const std::string& token) const {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(RegionHeader) <= kHeaderBytes);
  RegionHeader* h = new (base_) RegionHeader();
  h->size = static_cast<uint32_t>(size);
  h->layout_version = kLayoutVersion;
  std::memcpy(h->token, token.data(), std::min(token.size(), kTokenBytes));
  for (int rank = 0; rank < size; ++rank) {
    RankArea* a = area(rank);
    new (&a->flags) RankFlags();
    new (&a->doorbell) RankDoorbell();
    new (&a->info) RankInfo();
    a->to_coordinator.num_written.store(0);
    a->to_coordinator.num_read.store(0);
    a->to_coordinator.writer_waits.store(0);
    a->from_coordinator.num_written.store(0);
    a->from_coordinator.num_read.store(0);
    a->from_coordinator.writer_waits.store(0);
  }
  h->magic = kMagic;
}

bool RegionView::Matches(int size, const std::string& token) const {
  const RegionHeader* h = header();
  return h->magic == kMagic && h->layout_version == kLayoutVersion &&
         h->size == static_cast<uint32_t>(size) &&
         token.size() == kTokenBytes &&
         std::memcmp(h->token, token.data(), kTokenBytes) == 0;
}

}  // namespace hvd
