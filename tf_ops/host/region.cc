#include "tf_ops/host/region.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hvd {
namespace {

constexpr uint64_t kMagic = 0x6876645f6b657261;  // "hvd_kera"
constexpr uint32_t kLayoutVersion = 8;

}  // namespace

void Words::Set(const std::string& words) {
  uint32_t unset = 0;
  if (!is_set.compare_exchange_strong(unset, 1)) return;
  const size_t count = std::min(words.size(), kWordsBytes - 1);
  std::memcpy(text, words.data(), count);
  text[count] = 0;
  is_set.store(2);
}

std::string Words::Get() const {
  if (is_set.load() != 2) return "";
  return std::string(text, strnlen(text, kWordsBytes));
}

RegionView::RegionView(void* memory) : base_(static_cast<std::byte*>(memory)) {
  shape_.size = static_cast<int>(header()->size);
  shape_.has_wire = header()->has_wire != 0;
  area_bytes_ = AreaBytes(shape_);
}

void RegionView::Initialize(const RegionShape& shape, const std::string& token,
                            void* memory) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(RegionHeader) <= kHeaderBytes);
  RegionHeader* h = new (memory) RegionHeader();
  h->size = static_cast<uint32_t>(shape.size);
  h->has_wire = shape.has_wire ? 1 : 0;
  h->layout_version = kLayoutVersion;
  std::memcpy(h->token, token.data(), std::min(token.size(), kTokenBytes));
  const RegionView region(memory);
  for (int member = 0; member < shape.num_members(); ++member) {
    RankArea* a = region.area(member);
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

bool RegionView::Matches(const RegionShape& shape, const std::string& token,
                         const void* memory) {
  const auto* h = static_cast<const RegionHeader*>(memory);
  return h->magic == kMagic && h->layout_version == kLayoutVersion &&
         h->size == static_cast<uint32_t>(shape.size) &&
         h->has_wire == (shape.has_wire ? 1u : 0u) &&
         token.size() == kTokenBytes &&
         std::memcmp(h->token, token.data(), kTokenBytes) == 0;
}

}  // namespace hvd
