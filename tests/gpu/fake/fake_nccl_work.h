// The work of a launched group of NCCL calls: it sends and receives through
// rings of shared memory, and sums.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/fake/fake_stream.h"
#include "tf_ops/collectives/reduce.h"
#include "tf_ops/gpu/nccl_api.h"

namespace fake {

inline constexpr size_t kRingBytes = 64 << 10;

// Bytes from one rank to another, in order.
struct Ring {
  std::atomic<uint64_t> num_written;
  std::atomic<uint64_t> num_read;
  char bytes[kRingBytes];

  size_t Write(const char* from, size_t count) {
    const uint64_t written = num_written.load(std::memory_order_relaxed);
    const size_t room = kRingBytes - (written - num_read.load());
    const size_t start = written % kRingBytes;
    const size_t n = std::min({count, room, kRingBytes - start});
    std::memcpy(bytes + start, from, n);
    num_written.store(written + n);
    return n;
  }
  size_t Read(char* to, size_t count) {
    const uint64_t read = num_read.load(std::memory_order_relaxed);
    const size_t there = num_written.load() - read;
    const size_t start = read % kRingBytes;
    const size_t n = std::min({count, there, kRingBytes - start});
    std::memcpy(to, bytes + start, n);
    num_read.store(read + n);
    return n;
  }
};

inline constexpr int kMaxSplits = 8;  // of a communicator
inline constexpr int kMaxSplitRanks = 16;

struct Region {
  std::atomic<int> num_attached;
  // What each rank has said: 0: nothing yet, 1: not a member, 2: a member.
  std::atomic<int> votes[kMaxSplits][kMaxSplitRanks];
  std::atomic<int> is_running[kMaxSplitRanks];  // the kernel of each rank
  Ring rings[1];                                // size * size: from * size + to
};

struct PreMul {
  int dtype;
  double factor;
};

struct Comm {
  int rank = 0;
  int size = 0;
  int device = 0;
  std::string name;
  Region* region = nullptr;
  bool blocks = false;  // its groups are launched by the calling thread
  std::atomic<bool> aborted{false};
  std::atomic<int> state{hvd::kNcclInProgress};
  std::atomic<int> num_pending{0};  // groups that have not ended
  std::atomic<int> num_running{0};  // those that run on a stream
  int num_splits = 0;
  std::mutex mu;
  std::vector<std::unique_ptr<PreMul>> ops;  // null: destroyed

  Ring* ring(int from, int to) { return &region->rings[from * size + to]; }
  size_t region_bytes() const {
    return sizeof(Region) + sizeof(Ring) * static_cast<size_t>(size * size);
  }
  ~Comm() {
    if (region != nullptr) munmap(region, region_bytes());
  }
};

// Counts something that NCCL forbids; returns an error.
int Misuse(const char* what);

// Like Reduce of tf_ops/collectives, for the 8-bit floats, which that lacks.
void ReduceFloat8(const hvd::ReduceSpec& spec, const void* const* sources,
                  int num_sources, void* out, size_t num_elements);

float Float8Value(hvd::DataType dtype, uint8_t bits);

// Waits for all ranks; false: aborted.
bool Rendezvous(Comm* comm);

// Tells all ranks of `parent` whether this one is a member, waits for their
// answers, then for the members. Null: this rank is no member, or aborted.
std::shared_ptr<Comm> SplitOff(Comm* parent, int split, bool is_member);

enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kSend,
  kRecv,
};

struct Call {
  Kind kind;
  std::shared_ptr<Comm> comm;
  Stream* stream;
  const char* in;
  char* out;
  size_t num_elements;  // of each piece, as NCCL's function counts them
  hvd::ReduceSpec spec;
  int peer;  // or the root

  size_t num_bytes() const {
    return num_elements * hvd::ElementBytes(spec.dtype);
  }
};

// One launched group on one communicator.
class Work {
 public:
  explicit Work(std::vector<Call> calls) : calls_(std::move(calls)) {}
  void Run();  // on the stream

 private:
  struct Piece {
    char* bytes;
    size_t num_bytes;
  };
  struct Pieces {
    std::vector<Piece> list;
    size_t next = 0;
  };

  Comm& comm() { return *calls_[0].comm; }
  void Send(int peer, const char* bytes, size_t num_bytes);
  // Receives into this object's memory: outputs may be inputs of other calls.
  char* Receive(int peer, size_t num_bytes);
  void SetRunning(bool is_running);
  bool PlanAndMove();
  bool PlanAndMoveNow();
  void Plan(const Call& call);
  void ReceiveAndReduce(const Call& call);
  bool Move();  // false: aborted

  template <typename F>
  static bool Step(Pieces* pieces, F transfer);

  const std::vector<Call> calls_;
  std::vector<Pieces> sends_;
  std::vector<Pieces> receives_;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::function<void()>> finishes_;
};

}  // namespace fake
