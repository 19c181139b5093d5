#include "tf_ops/collectives/host/reducescatter.h"

#include <algorithm>

#include "tf_ops/collectives/host/chunks.h"
#include "tf_ops/collectives/phases.h"

namespace hvd {
namespace {

// Chunk c carries the c-th part of what each rank ends up with. In step s a
// rank
//   1. copies what others own of chunk s into its slab, and posts kIn;
//   2. reduces what it owns of chunk s - 1 from its tensors and the peers'
//      slabs into its outputs.
// So a rank that posts kIn for chunk s has read all of chunk s - 2.
class PipelinedReducescatter {
 public:
  PipelinedReducescatter(HostSlabs* slabs,
                         const std::vector<TensorList>& by_rank,
                         const ReduceSpec& spec)
      : slabs_(*slabs),
        by_rank_(by_rank),
        spec_(spec),
        rank_(slabs->rank()),
        size_(slabs->size()),
        first_(slabs->next_chunk()),
        parts_(*slabs),
        sources_(static_cast<size_t>(size_)) {}

  Status Run() {
    size_t longest = 0;
    for (const TensorList& tensors : by_rank_) {
      longest = std::max(longest, tensors.num_bytes());
    }
    const uint32_t num_chunks =
        static_cast<uint32_t>(DivideUp(longest, parts_.part_bytes()));
    for (uint32_t step = 0; num_chunks > 0 && step <= num_chunks; ++step) {
      if (step < num_chunks) HVD_RETURN_IF_ERROR(CopyIn(step));
      if (step > 0) HVD_RETURN_IF_ERROR(ReduceOwn(step - 1));
    }
    slabs_.AdvanceChunks(num_chunks);
    return Status::Ok();
  }

 private:
  Range ChunkOfRank(int rank, uint32_t c) const {
    return ChunkOf(by_rank_[static_cast<size_t>(rank)].num_bytes(),
                   parts_.part_bytes(), c);
  }

  Status CopyIn(uint32_t c) {
    const uint32_t chunk = first_ + c;
    HVD_RETURN_IF_ERROR(WaitForSlot(&slabs_, chunk));
    for (int hop = 1; hop < size_; ++hop) {
      const int peer = (rank_ + hop) % size_;
      const Range range = ChunkOfRank(peer, c);
      by_rank_[static_cast<size_t>(peer)].CopyIn(
          range.begin, range.end,
          slabs_.slot(rank_, chunk) + parts_.Offset(rank_, peer));
    }
    slabs_.Post(Flag::kIn, chunk + 1);
    return Status::Ok();
  }

  Status ReduceOwn(uint32_t c) {
    const uint32_t chunk = first_ + c;
    const Range range = ChunkOfRank(rank_, c);
    if (range.size() == 0) return Status::Ok();
    HVD_RETURN_IF_ERROR(slabs_.WaitAll(Flag::kIn, chunk + 1));
    size_t offset = 0;
    const ScopedPhase phase(Phase::kReduce, range.size());
    by_rank_[static_cast<size_t>(rank_)].ForEach(
        range.begin, range.end,
        [&](const std::byte* in, std::byte* out, size_t count) {
          for (int peer = 0; peer < size_; ++peer) {
            sources_[static_cast<size_t>(peer)] =
                peer == rank_ ? in
                              : slabs_.slot(peer, chunk) +
                                    parts_.Offset(peer, rank_) + offset;
          }
          Reduce(spec_, sources_.data(), size_, out,
                 count / ElementBytes(spec_.dtype));
          offset += count;
        });
    return Status::Ok();
  }

  HostSlabs& slabs_;
  const std::vector<TensorList>& by_rank_;
  const ReduceSpec& spec_;
  const int rank_;
  const int size_;
  const uint32_t first_;  // the number of our first chunk
  const PeerParts parts_;
  std::vector<const void*> sources_;  // by rank
};

}  // namespace

Status Reducescatter(HostSlabs* slabs, const std::vector<TensorList>& by_rank,
                     const ReduceSpec& spec) {
  return PipelinedReducescatter(slabs, by_rank, spec).Run();
}

}  // namespace hvd
