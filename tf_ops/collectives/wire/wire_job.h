// What the ranks of a host ask of its wire: the collective between hosts that
// belongs to one of theirs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tf_ops/collectives/low_rank.h"
#include "tf_ops/collectives/quantize.h"
#include "tf_ops/collectives/ranges.h"
#include "tf_ops/collectives/reduce.h"
#include "tf_ops/common/status.h"

namespace hvd {

// The data goes by chunks through the slots of the wire's slab: chunk c of the
// job is chunk first_chunk + c of the slabs. Once all ranks have posted its
// kOut, the wire owns the slot; then it posts kOut itself.
struct WireJob {
  enum class Kind : uint8_t {
    // A slot holds a part of the block of each host, see BlockLayout. If the
    // job reduces, all hosts bring all blocks, and each reduces its own; else
    // each brings its own. If it gathers, each host then gets all blocks. A
    // job with a wire format does both, and its blocks have whole units.
    kBlocks = 0,
    // A slot holds bytes of `host`; all hosts get them.
    kBroadcast,
    // The first half of a slot holds a part of what goes to each host, the
    // second of what comes from it.
    kAlltoall,
    // A slot holds bytes of the tensors: first what this host brings of them,
    // in as many chunks as it takes, then, in as many more, the results.
    kLowRank,
  };
  Kind kind = Kind::kBlocks;
  uint32_t first_chunk = 0;
  bool reduces = false;
  bool gathers = false;
  ReduceSpec spec;   // how hosts combine; prescale is 1
  int32_t host = 0;  // kBroadcast: the source
  // By host. kBlocks: its block; kAlltoall: what this host sends it.
  // kBroadcast, kLowRank: one number.
  std::vector<uint64_t> bytes;
  std::vector<uint64_t> received;  // kAlltoall: what this host gets from it
  // kInt4: the tensors of which each block has a part, as PartOf cuts it and
  // filled up to whole units. kLowRank: all.
  struct Tensor {
    uint64_t key = 0;  // as in ListTensor
    uint64_t num_bytes = 0;
    uint64_t rows = 0;  // kLowRank
  };
  std::vector<Tensor> tensors;
};

// What the blocks of hosts are cut into, in bytes.
inline size_t UnitOf(const ReduceSpec& spec) {
  return spec.wire_format == WireFormat::kExact
             ? 64  // parts do not share a cache line
             : kPackedElements * ElementBytes(spec.dtype);
}

void Encode(const WireJob& job, std::vector<uint8_t>* bytes);
// Takes a whole job off `*bytes`, from `*offset` on. False if there is none
// yet. Internal if it makes no sense.
Status Decode(const std::vector<uint8_t>& bytes, size_t* offset, int num_hosts,
              WireJob* job, bool* found);

// Where a slot holds which part of the block of each host.
class BlockLayout {
 public:
  // Blocks of different jobs and directions may share a `longest` one, and so
  // their chunks. `space`: bytes of a slot to use. Parts begin at multiples of
  // `unit`.
  BlockLayout(std::vector<uint64_t> blocks, uint64_t longest, size_t space,
              size_t unit = UnitOf(ReduceSpec()))
      : blocks_(std::move(blocks)),
        stride_(std::min(space / blocks_.size() / unit * unit,
                         DivideUp(longest, unit) * unit)),
        num_chunks_(stride_ == 0
                        ? 0
                        : static_cast<uint32_t>(DivideUp(longest, stride_))) {}
  BlockLayout(const WireJob& job, size_t space)
      : BlockLayout(job.bytes,
                    *std::max_element(job.bytes.begin(), job.bytes.end()),
                    space, UnitOf(job.spec)) {}

  uint32_t num_chunks() const { return num_chunks_; }
  int num_hosts() const { return static_cast<int>(blocks_.size()); }
  // The part of the block of `host` in chunk `c`, and where it is in the slot.
  Range Part(int host, uint32_t c) const {
    return ChunkOf(blocks_[static_cast<size_t>(host)], stride_, c);
  }
  size_t Offset(int host) const { return stride_ * static_cast<size_t>(host); }
  // The end of the last part of chunk `c` that is not empty.
  size_t End(uint32_t c) const {
    size_t end = 0;
    for (int host = 0; host < num_hosts(); ++host) {
      const size_t size = Part(host, c).size();
      if (size > 0) end = Offset(host) + size;
    }
    return end;
  }

 private:
  const std::vector<uint64_t> blocks_;
  const size_t stride_;
  const uint32_t num_chunks_;
};

}  // namespace hvd
