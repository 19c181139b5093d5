#include "tf_ops/collectives/host/alltoall.h"

#include <algorithm>
#include <string>

#include "tf_ops/collectives/host/chunks.h"

namespace hvd {
namespace {

Status CheckLengths(const AlltoallLists& lists, const ByteMatrix& num_bytes,
                    size_t rank) {
  for (size_t peer = 0; peer < num_bytes.size(); ++peer) {
    if (lists.send[peer].num_bytes() != num_bytes[rank][peer] ||
        lists.recv[peer].num_bytes() != num_bytes[peer][rank]) {
      return Status::Internal(
          "the lists of an alltoall do not fit its matrix of bytes: rank " +
          std::to_string(rank) + " with rank " + std::to_string(peer));
    }
  }
  return Status::Ok();
}

// The most bytes that go from one rank to another.
size_t LongestOf(const ByteMatrix& num_bytes) {
  size_t longest = 0;
  for (size_t from = 0; from < num_bytes.size(); ++from) {
    for (size_t to = 0; to < num_bytes.size(); ++to) {
      if (from != to) longest = std::max(longest, num_bytes[from][to]);
    }
  }
  return longest;
}

// Chunk c carries the c-th part of what each pair exchanges.
class PipelinedAlltoall {
 public:
  PipelinedAlltoall(HostSlabs* slabs, const AlltoallLists& lists,
                    size_t longest)
      : slabs_(*slabs),
        lists_(lists),
        rank_(slabs->rank()),
        size_(slabs->size()),
        first_(slabs->next_chunk()),
        parts_(*slabs),
        num_chunks_(
            static_cast<uint32_t>(DivideUp(longest, parts_.part_bytes()))) {}

  // In step s a rank writes its chunk s and reads the peers' chunk s - 1. So a
  // rank that posts kIn for chunk s has read all of chunk s - 2.
  Status Run() {
    for (uint32_t step = 0; num_chunks_ > 0 && step <= num_chunks_; ++step) {
      if (step < num_chunks_) HVD_RETURN_IF_ERROR(CopyIn(step));
      if (step > 0) HVD_RETURN_IF_ERROR(CopyOut(step - 1));
    }
    slabs_.AdvanceChunks(num_chunks_);
    return Status::Ok();
  }

 private:
  // A rank with nothing to send waits and posts too: the peers count on it.
  Status CopyIn(uint32_t c) {
    const uint32_t chunk = first_ + c;
    HVD_RETURN_IF_ERROR(WaitForSlot(&slabs_, chunk));
    for (int hop = 1; hop < size_; ++hop) {
      const int peer = (rank_ + hop) % size_;
      const TensorList& mine = lists_.send[static_cast<size_t>(peer)];
      const Range range = ChunkOf(mine.num_bytes(), parts_.part_bytes(), c);
      mine.CopyIn(range.begin, range.end,
                  slabs_.slot(rank_, chunk) + parts_.Offset(rank_, peer));
    }
    slabs_.Post(Flag::kIn, chunk + 1);
    return Status::Ok();
  }

  Status CopyOut(uint32_t c) {
    const uint32_t chunk = first_ + c;
    for (int hop = 1; hop < size_; ++hop) {
      const int peer = (rank_ + hop) % size_;
      const TensorList& theirs = lists_.recv[static_cast<size_t>(peer)];
      const Range range = ChunkOf(theirs.num_bytes(), parts_.part_bytes(), c);
      if (range.size() == 0) continue;
      HVD_RETURN_IF_ERROR(slabs_.Wait(peer, Flag::kIn, chunk + 1));
      theirs.CopyOut(range.begin, range.end,
                     slabs_.slot(peer, chunk) + parts_.Offset(peer, rank_));
    }
    return Status::Ok();
  }

  HostSlabs& slabs_;
  const AlltoallLists& lists_;
  const int rank_;
  const int size_;
  const uint32_t first_;  // the number of our first chunk
  const PeerParts parts_;
  const uint32_t num_chunks_;
};

}  // namespace

Status Alltoall(HostSlabs* slabs, const AlltoallLists& lists,
                const ByteMatrix& num_bytes) {
  const size_t rank = static_cast<size_t>(slabs->rank());
  HVD_RETURN_IF_ERROR(CheckLengths(lists, num_bytes, rank));
  HVD_RETURN_IF_ERROR(
      PipelinedAlltoall(slabs, lists, LongestOf(num_bytes)).Run());
  // Copy what stays here; the two lists may be cut in different places.
  const TensorList& own = lists.send[rank];
  size_t offset = 0;
  lists.recv[rank].ForEach(0, own.num_bytes(),
                           [&](const std::byte*, std::byte* out, size_t count) {
                             if (out != nullptr) {
                               own.CopyIn(offset, offset + count, out);
                             }
                             offset += count;
                           });
  return Status::Ok();
}

}  // namespace hvd
