// The memory that the ranks of one host share: its layout, as a view.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd {

inline constexpr uint32_t kNumSlots = 8;
inline constexpr size_t kSlotBytes = 256 << 10;
inline constexpr size_t kSlabBytes = kNumSlots * kSlotBytes;
inline constexpr size_t kRingBytes = 64 << 10;  // a power of two
inline constexpr size_t kWordsBytes = 956;
inline constexpr size_t kTokenBytes = 32;

struct RegionHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t size;  // ranks
  uint8_t token[kTokenBytes];
  std::atomic<uint32_t> num_gone;     // ranks that left or are broken
  std::atomic<uint32_t> num_crowded;  // ranks that have many requests in flight
};

enum class RankState : uint32_t { kPresent = 0, kLeft = 1, kBroken = 2 };

// What other ranks read has cache lines of its own.
struct alignas(128) RankFlags {
  std::atomic<uint32_t> seq[2];  // by Flag
  std::atomic<uint32_t> num_waiters;
};
struct alignas(128) RankDoorbell {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleeping;  // a thread of the owner waits in futex
  std::atomic<uint32_t> watched;   // another one looks without sleeping
};
// Words that are written once and may be read once `is_set` says so.
struct Words {
  std::atomic<uint32_t> is_set;  // 0: no, 1: being written, 2: yes
  char text[kWordsBytes];        // ends with 0
};
struct alignas(128) RankInfo {
  std::atomic<uint32_t> state;          // RankState
  std::atomic<uint32_t> left_in_peace;  // 1: and its process may end
  Words reason;                         // why it left or is broken
  Words last;                           // its last words, if it dies
};
// A byte stream with one writer and one reader.
struct alignas(128) ControlRing {
  alignas(128) std::atomic<uint64_t> num_written;
  alignas(128) std::atomic<uint64_t> num_read;
  std::atomic<uint32_t> writer_waits;  // reader: ring the writer's doorbell
  alignas(128) uint8_t bytes[kRingBytes];
};
struct RankArea {
  RankFlags flags;
  RankDoorbell doorbell;
  RankInfo info;
  ControlRing to_coordinator;    // rank -> 0
  ControlRing from_coordinator;  // 0 -> rank
  alignas(4096) std::byte slab[kSlabBytes];
};

// Borrows Bytes(size) bytes of memory, which are zero before Initialize.
class RegionView {
 public:
  RegionView() = default;
  explicit RegionView(void* memory) : base_(static_cast<std::byte*>(memory)) {}

  static size_t Bytes(int size) {
    return kHeaderBytes + static_cast<size_t>(size) * sizeof(RankArea);
  }

  void Initialize(int size, const std::string& token) const;
  // False if this is not a region of `size` ranks with this token.
  bool Matches(int size, const std::string& token) const;

  RegionHeader* header() const {
    return reinterpret_cast<RegionHeader*>(base_);
  }
  int size() const { return static_cast<int>(header()->size); }  // ranks
  RankArea* area(int rank) const {
    return reinterpret_cast<RankArea*>(
        base_ + kHeaderBytes + static_cast<size_t>(rank) * sizeof(RankArea));
  }
  std::byte* slab(int rank) const { return area(rank)->slab; }

 private:
  static constexpr size_t kHeaderBytes = 4096;
  std::byte* base_ = nullptr;
};

}  // namespace hvd
