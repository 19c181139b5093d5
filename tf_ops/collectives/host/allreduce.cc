#include "tf_ops/collectives/host/allreduce.h"

#include <algorithm>
#include <vector>

#include "tf_ops/collectives/host/chunks.h"
#include "tf_ops/collectives/phases.h"

namespace hvd {
namespace {

constexpr size_t kLineBytes = 64;  // ranks do not share a cache line

// One call of the pipelined algorithm. Chunk s is cut into one part a rank.
// In step s a rank
//   1. reduces its part of chunk s - 1 from its tensors and the peers' slabs
//      into its output and its slab (its own part was never copied there, so
//      that place is free for the result), and posts kOut;
//   2. copies the parts of chunk s that others reduce into its slab, and posts
//      kIn;
//   3. reads the peers' results of chunk s - 2 into its outputs.
// So a rank that posts kIn for chunk s has read all of chunk s - 3.
class PipelinedAllreduce {
 public:
  PipelinedAllreduce(HostSlabs* slabs, const TensorList& tensors,
                     const ReduceSpec& spec)
      : slabs_(*slabs),
        tensors_(tensors),
        spec_(spec),
        rank_(slabs->rank()),
        size_(slabs->size()),
        first_(slabs->next_chunk()),
        part_bytes_(slabs->slot_bytes() / static_cast<size_t>(size_) /
                    kLineBytes * kLineBytes),
        chunk_bytes_(part_bytes_ * static_cast<size_t>(size_)),
        num_chunks_(
            static_cast<uint32_t>(DivideUp(tensors.num_bytes(), chunk_bytes_))),
        sources_(static_cast<size_t>(size_)) {}

  Status Run() {
    // Only allreduce posts kOut. Without this post kOut could fall behind the
    // chunks by half the range of their numbers, and then look reached.
    slabs_.Post(Flag::kOut, first_);
    for (uint32_t step = 0; step < num_chunks_ + 2; ++step) {
      if (step >= 1 && step <= num_chunks_) {
        HVD_RETURN_IF_ERROR(ReduceOwnPart(step - 1));
      }
      if (step < num_chunks_) HVD_RETURN_IF_ERROR(CopyIn(step));
      if (step >= 2) HVD_RETURN_IF_ERROR(CopyOut(step - 2));
    }
    slabs_.AdvanceChunks(num_chunks_);
    return Status::Ok();
  }

 private:
  // The bytes of `rank`'s part of chunk `c`, counted in the whole list, and
  // where the part begins in a slot.
  Range Part(uint32_t c, int rank, size_t* slot_offset) const {
    const size_t begin = static_cast<size_t>(c) * chunk_bytes_;
    const size_t count = std::min(chunk_bytes_, tensors_.num_bytes() - begin);
    const Range part = PartOf(count, size_, rank, kLineBytes);
    *slot_offset = static_cast<size_t>(rank) * part_bytes_;
    return Range{begin + part.begin, begin + part.end};
  }

  Status CopyIn(uint32_t c) {
    const uint32_t chunk = first_ + c;
    HVD_RETURN_IF_ERROR(WaitForSlot(&slabs_, chunk));
    std::byte* slot = slabs_.slot(rank_, chunk);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      size_t offset;
      const Range part = Part(c, peer, &offset);
      tensors_.CopyIn(part.begin, part.end, slot + offset);
    }
    slabs_.Post(Flag::kIn, chunk + 1);
    return Status::Ok();
  }

  Status ReduceOwnPart(uint32_t c) {
    const uint32_t chunk = first_ + c;
    HVD_RETURN_IF_ERROR(slabs_.WaitAll(Flag::kIn, chunk + 1));
    size_t offset;
    const Range part = Part(c, rank_, &offset);
    ReducePart(chunk, part, offset);
    slabs_.Post(Flag::kOut, chunk + 1);
    return Status::Ok();
  }

  void ReducePart(uint32_t chunk, const Range& part, size_t offset) {
    const ScopedPhase phase(Phase::kReduce, part.size());
    tensors_.ForEach(part.begin, part.end,
                     [&](const std::byte* in, std::byte* out, size_t count) {
                       ReducePiece(chunk, offset, in, out, count);
                       offset += count;
                     });
  }

  // Goes by blocks: a result is still in the L1 cache when it is copied on.
  void ReducePiece(uint32_t chunk, size_t offset, const std::byte* in,
                   std::byte* out, size_t count) {
    constexpr size_t kBlockBytes = 8192;
    const size_t element_bytes = ElementBytes(spec_.dtype);
    for (size_t done = 0; done < count; done += kBlockBytes) {
      const size_t n = std::min(kBlockBytes, count - done);
      for (int peer = 0; peer < size_; ++peer) {
        sources_[static_cast<size_t>(peer)] =
            peer == rank_ ? in + done
                          : slabs_.slot(peer, chunk) + offset + done;
      }
      Reduce(spec_, sources_.data(), size_, out + done, n / element_bytes);
      CopyToShared(slabs_.slot(rank_, chunk) + offset + done, out + done, n);
    }
  }

  Status CopyOut(uint32_t c) {
    const uint32_t chunk = first_ + c;
    for (int hop = 1; hop < size_; ++hop) {
      // Each rank begins elsewhere, so that they do not all read one slab.
      const int peer = (rank_ + hop) % size_;
      HVD_RETURN_IF_ERROR(slabs_.Wait(peer, Flag::kOut, chunk + 1));
      size_t offset;
      const Range part = Part(c, peer, &offset);
      tensors_.CopyOut(part.begin, part.end, slabs_.slot(peer, chunk) + offset);
    }
    return Status::Ok();
  }

  HostSlabs& slabs_;
  const TensorList& tensors_;
  const ReduceSpec& spec_;
  const int rank_;
  const int size_;
  const uint32_t first_;      // the number of our first chunk
  const size_t part_bytes_;   // of a slot that belong to one rank
  const size_t chunk_bytes_;  // of the list in one chunk
  const uint32_t num_chunks_;
  std::vector<const void*> sources_;  // by rank
};

// One chunk: every rank reads all slabs.
Status FlatAllreduce(HostSlabs* slabs, const TensorList& tensors,
                     const ReduceSpec& spec) {
  const int rank = slabs->rank();
  const int size = slabs->size();
  const uint32_t chunk = slabs->next_chunk();
  const size_t num_bytes = tensors.num_bytes();
  HVD_RETURN_IF_ERROR(WaitForSlot(slabs, chunk));
  tensors.CopyIn(0, num_bytes, slabs->slot(rank, chunk));
  slabs->Post(Flag::kIn, chunk + 1);
  HVD_RETURN_IF_ERROR(slabs->WaitAll(Flag::kIn, chunk + 1));
  std::vector<const void*> sources(static_cast<size_t>(size));
  size_t offset = 0;
  const ScopedPhase phase(Phase::kReduce, num_bytes);
  tensors.ForEach(0, num_bytes,
                  [&](const std::byte* in, std::byte* out, size_t count) {
                    for (int peer = 0; peer < size; ++peer) {
                      sources[static_cast<size_t>(peer)] =
                          peer == rank ? in : slabs->slot(peer, chunk) + offset;
                    }
                    Reduce(spec, sources.data(), size, out,
                           count / ElementBytes(spec.dtype));
                    offset += count;
                  });
  slabs->AdvanceChunks(1);
  return Status::Ok();
}

}  // namespace

Status Allreduce(HostSlabs* slabs, const TensorList& tensors,
                 const ReduceSpec& spec) {
  const size_t num_bytes = tensors.num_bytes();
  if (num_bytes == 0) return Status::Ok();
  if (slabs->size() == 1) {
    const ScopedPhase phase(Phase::kReduce, num_bytes);
    tensors.ForEach(
        0, num_bytes, [&](const std::byte* in, std::byte* out, size_t count) {
          const void* source = in;
          Reduce(spec, &source, 1, out, count / ElementBytes(spec.dtype));
        });
    return Status::Ok();
  }
  if (num_bytes <= FlatBytes(slabs->size())) {
    return FlatAllreduce(slabs, tensors, spec);
  }
  return PipelinedAllreduce(slabs, tensors, spec).Run();
}

}  // namespace hvd
