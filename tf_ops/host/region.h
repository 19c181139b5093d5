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
// With a wire: a message to another host is a part of a slot.
inline constexpr size_t kSlotBytesOfWire = 1 << 20;
inline constexpr size_t kRingBytes = 64 << 10;  // a power of two
inline constexpr size_t kWordsBytes = 956;
inline constexpr size_t kTokenBytes = 32;
inline constexpr size_t kNumTurns = 64;  // of launches that are drawn ahead

// Who shares a region: the ranks of a host, and the wire, if there is one,
// which carries their data to other hosts. The wire comes after the last rank.
struct RegionShape {
  RegionShape(int num_ranks = 1, bool with_wire = false)
      : size(num_ranks), has_wire(with_wire) {}

  int size;  // ranks
  bool has_wire;

  int num_members() const { return size + (has_wire ? 1 : 0); }
  size_t slot_bytes() const { return has_wire ? kSlotBytesOfWire : kSlotBytes; }
  size_t slab_bytes() const { return kNumSlots * slot_bytes(); }
};

// Words that are written once. Any thread of any member may call it.
struct Words {
  void Set(const std::string& words);  // the first ones stay
  std::string Get() const;             // empty until they are set

  std::atomic<uint32_t> is_set;  // 0: no, 1: being written, 2: yes
  char text[kWordsBytes];        // ends with 0
};

struct RegionHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t size;  // ranks
  uint32_t has_wire;
  uint8_t token[kTokenBytes];
  std::atomic<uint32_t> num_gone;     // members that left or are broken
  std::atomic<uint32_t> num_crowded;  // ranks that have many requests in flight
  std::atomic<uint32_t> wire_must_end;
  // When the thread of the first rank's links was last seen (milliseconds of
  // Clock), and after how many more it is lost. 0: nobody says.
  std::atomic<uint64_t> leader_seen_ms;
  std::atomic<uint64_t> leader_timeout_ms;
  // When the first rank's engine last looked for stalls (milliseconds of
  // Clock), and when that was when others warned that it does not any more.
  std::atomic<uint64_t> first_looked_ms;
  std::atomic<uint64_t> first_missed_ms;
  // The network has come apart, and these ranks are not the side that goes on.
  std::atomic<uint32_t> is_minority;
  // See LaunchOrder. Of the job: held for a moment. Of a set: how many of its
  // launches have got their turns.
  std::atomic<uint32_t> turns_lock;
  std::atomic<uint64_t> num_launches_drawn;
  // Of ranks on other hosts: why the first of them left, and why the first that
  // did not leave in peace is gone.
  Words others_left;
  Words others_lost;
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
struct alignas(128) RankInfo {
  std::atomic<uint32_t> state;          // RankState
  std::atomic<uint32_t> left_in_peace;  // 1: and its process may end
  std::atomic<uint32_t> has_met;        // 1: see Membership::Meet
  Words name;                           // how the other ranks name it
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
// See LaunchOrder.
struct alignas(128) GpuTurns {
  // Of the rank, in the job:
  std::atomic<uint64_t> num_given;
  std::atomic<uint64_t> num_ended;
  // In each set: how many launches have ended, and the turns of the next ones.
  std::atomic<uint64_t> num_launched;
  std::atomic<uint64_t> by_launch[kNumTurns];
};
// Of each member; its slab follows.
struct alignas(4096) RankArea {
  RankFlags flags;
  RankDoorbell doorbell;
  RankInfo info;
  ControlRing to_coordinator;    // rank -> 0
  ControlRing from_coordinator;  // 0 -> rank
  GpuTurns turns;
};

// Borrows Bytes(shape) bytes of memory, which are zero before Initialize.
class RegionView {
 public:
  RegionView() = default;
  // The memory was initialized.
  explicit RegionView(void* memory);

  static size_t Bytes(const RegionShape& shape) {
    return kHeaderBytes +
           static_cast<size_t>(shape.num_members()) * AreaBytes(shape);
  }
  static void Initialize(const RegionShape& shape, const std::string& token,
                         void* memory);
  // Whether this is a region of that shape with this token.
  static bool Matches(const RegionShape& shape, const std::string& token,
                      const void* memory);

  RegionHeader* header() const {
    return reinterpret_cast<RegionHeader*>(base_);
  }
  const RegionShape& shape() const { return shape_; }
  int size() const { return shape_.size; }  // ranks
  int num_members() const { return shape_.num_members(); }
  RankArea* area(int member) const {
    return reinterpret_cast<RankArea*>(
        base_ + kHeaderBytes + static_cast<size_t>(member) * area_bytes_);
  }
  std::byte* slab(int member) const {
    return reinterpret_cast<std::byte*>(area(member) + 1);
  }

 private:
  static constexpr size_t kHeaderBytes = 4096;
  static size_t AreaBytes(const RegionShape& shape) {
    return sizeof(RankArea) + shape.slab_bytes();
  }

  std::byte* base_ = nullptr;
  RegionShape shape_;
  size_t area_bytes_ = 0;
};

}  // namespace hvd
