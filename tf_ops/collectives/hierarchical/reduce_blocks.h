// The half of a reducing job that the ranks of a host do together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/collectives/wire/wire_job.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

// Fills the wire's slots with the sums of this host's ranks. Each chunk is cut
// into one part a rank. In step s a rank
//   1. reduces its part of chunk s - 1 from its tensors and the peers' slabs
//      into the wire's slot, and posts kOut;
//   2. copies the parts of chunk s that others reduce into its slab, and posts
//      kIn.
class BlockReducer {
 public:
  // Borrows all. `blocks`: this rank's inputs, by host.
  BlockReducer(HostSlabs* slabs, const std::vector<TensorList>& blocks,
               const BlockLayout& layout, const ReduceSpec& spec);

  Status Step(uint32_t step);

 private:
  // A run of bytes of one block, in a chunk.
  struct Piece {
    size_t host;
    size_t begin;  // in the block
    size_t end;
    size_t slot_offset;  // in the wire's slot
    size_t own_offset;   // in the slot of a rank
  };
  // The part of chunk `c` that `rank` reduces.
  std::vector<Piece> PartOfRank(uint32_t c, int rank) const;
  Status CopyIn(uint32_t c);
  Status ReduceOwnPart(uint32_t c);
  void ReducePiece(uint32_t chunk, size_t own_offset, const std::byte* in,
                   size_t count, std::byte* out);

  HostSlabs& slabs_;
  const std::vector<TensorList>& blocks_;
  const BlockLayout& layout_;
  const ReduceSpec& spec_;
  const uint32_t first_;  // the number of the first chunk
  const int rank_;
  const int size_;
  std::vector<const void*> sources_;  // by rank
};

}  // namespace hvd
