#include "tf_ops/collectives/host/allgather.h"

#include <algorithm>

#include "tf_ops/collectives/host/chunks.h"

namespace hvd {
// In step s a rank writes its chunk s and reads the peers' chunk s - 1. So a
// rank that posts kIn for chunk s has read all of chunk s - 2.
Status Allgather(HostSlabs* slabs, const std::vector<TensorList>& by_rank) {
  const int rank = slabs->rank();
  const int size = slabs->size();
  const size_t slot_bytes = slabs->slot_bytes();
  const TensorList& own = by_rank[static_cast<size_t>(rank)];
  size_t longest = 0;
  for (const TensorList& tensors : by_rank) {
    longest = std::max(longest, tensors.num_bytes());
  }
  const uint32_t first = slabs->next_chunk();
  const uint32_t num_chunks =
      size == 1 ? 0 : static_cast<uint32_t>(DivideUp(longest, slot_bytes));
  for (uint32_t step = 0; num_chunks > 0 && step <= num_chunks; ++step) {
    if (step < num_chunks) {
      const uint32_t chunk = first + step;
      HVD_RETURN_IF_ERROR(WaitForSlot(slabs, chunk));
      const Range range = ChunkOf(own.num_bytes(), slot_bytes, step);
      own.CopyIn(range.begin, range.end, slabs->slot(rank, chunk));
      slabs->Post(Flag::kIn, chunk + 1);
    }
    if (step == 0) continue;
    const uint32_t chunk = first + step - 1;
    for (int hop = 1; hop < size; ++hop) {
      const int peer = (rank + hop) % size;
      HVD_RETURN_IF_ERROR(slabs->Wait(peer, Flag::kIn, chunk + 1));
      const TensorList& theirs = by_rank[static_cast<size_t>(peer)];
      const Range range = ChunkOf(theirs.num_bytes(), slot_bytes, step - 1);
      theirs.CopyOut(range.begin, range.end, slabs->slot(peer, chunk));
    }
  }
  slabs->AdvanceChunks(num_chunks);
  own.ForEach(0, own.num_bytes(),
              [](const std::byte* in, std::byte* out, size_t count) {
                if (in != out && out != nullptr) std::memcpy(out, in, count);
              });
  return Status::Ok();
}

}  // namespace hvd
