#include "tf_ops/collectives/host/broadcast.h"

#include <algorithm>

#include "tf_ops/collectives/host/chunks.h"

namespace hvd {

Status Broadcast(HostSlabs* slabs, const TensorList& tensors, int root_rank) {
  const size_t num_bytes = tensors.num_bytes();
  const size_t slot_bytes = slabs->slot_bytes();
  const bool is_root = slabs->rank() == root_rank;
  const uint32_t first = slabs->next_chunk();
  const uint32_t num_chunks =
      slabs->size() == 1
          ? 0
          : static_cast<uint32_t>(DivideUp(num_bytes, slot_bytes));
  for (uint32_t c = 0; c < num_chunks; ++c) {
    const uint32_t chunk = first + c;
    const size_t begin = static_cast<size_t>(c) * slot_bytes;
    const size_t end = std::min(num_bytes, begin + slot_bytes);
    std::byte* slot = slabs->slot(root_rank, chunk);
    if (is_root) {
      HVD_RETURN_IF_ERROR(WaitForSlot(slabs, chunk));
      tensors.CopyIn(begin, end, slot);
    } else {
      HVD_RETURN_IF_ERROR(slabs->Wait(root_rank, Flag::kIn, chunk + 1));
      tensors.CopyOut(begin, end, slot);
    }
    // From a rank that is not the root: "I have read it".
    slabs->Post(Flag::kIn, chunk + 1);
  }
  slabs->AdvanceChunks(num_chunks);
  if (is_root) {
    tensors.ForEach(0, num_bytes,
                    [](const std::byte* in, std::byte* out, size_t count) {
                      if (in != out) std::memcpy(out, in, count);
                    });
  }
  return Status::Ok();
}

}  // namespace hvd
