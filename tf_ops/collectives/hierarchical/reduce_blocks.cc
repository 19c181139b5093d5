#include "tf_ops/collectives/hierarchical/reduce_blocks.h"

#include <algorithm>

#include "tf_ops/collectives/hierarchical/chunk_pipeline.h"
#include "tf_ops/collectives/phases.h"
#include "tf_ops/collectives/ranges.h"

namespace hvd {
namespace {

constexpr size_t kLineBytes = 64;  // ranks do not share a cache line

}  // namespace

BlockReducer::BlockReducer(HostSlabs* slabs,
                           const std::vector<TensorList>& blocks,
                           const BlockLayout& layout, const ReduceSpec& spec)
    : slabs_(*slabs),
      blocks_(blocks),
      layout_(layout),
      spec_(spec),
      first_(slabs->next_chunk()),
      rank_(slabs->rank()),
      size_(slabs->size()),
      sources_(static_cast<size_t>(size_)) {}

Status BlockReducer::Step(uint32_t step) {
  if (step > 0) HVD_RETURN_IF_ERROR(ReduceOwnPart(step - 1));
  return step < layout_.num_chunks() ? CopyIn(step) : Status::Ok();
}

std::vector<BlockReducer::Piece> BlockReducer::PartOfRank(uint32_t c,
                                                          int rank) const {
  size_t total = 0;
  for (int host = 0; host < layout_.num_hosts(); ++host) {
    total += layout_.Part(host, c).size();
  }
  const Range mine = PartOf(total, size_, rank, kLineBytes);
  std::vector<Piece> pieces;
  size_t begin = 0;  // of the block's part, in the chunk
  for (int host = 0; host < layout_.num_hosts(); ++host) {
    const Range part = layout_.Part(host, c);
    const size_t from = std::max(begin, mine.begin);
    const size_t to = std::min(begin + part.size(), mine.end);
    if (from < to) {
      pieces.push_back(Piece{static_cast<size_t>(host),
                             part.begin + from - begin, part.begin + to - begin,
                             layout_.Offset(host) + from - begin, from});
    }
    begin += part.size();
  }
  return pieces;
}

Status BlockReducer::CopyIn(uint32_t c) {
  const uint32_t chunk = first_ + c;
  HVD_RETURN_IF_ERROR(WaitForWireSlot(&slabs_, chunk));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    for (const Piece& piece : PartOfRank(c, peer)) {
      blocks_[piece.host].CopyIn(piece.begin, piece.end,
                                 slabs_.slot(rank_, chunk) + piece.own_offset);
    }
  }
  slabs_.Post(Flag::kIn, chunk + 1);
  return Status::Ok();
}

Status BlockReducer::ReduceOwnPart(uint32_t c) {
  const uint32_t chunk = first_ + c;
  HVD_RETURN_IF_ERROR(slabs_.WaitAll(Flag::kIn, chunk + 1));
  std::byte* const wire_slot = WireSlot(&slabs_, chunk);
  for (const Piece& piece : PartOfRank(c, rank_)) {
    size_t own_offset = piece.own_offset;
    std::byte* out = wire_slot + piece.slot_offset;
    const ScopedPhase phase(Phase::kReduce, piece.end - piece.begin);
    blocks_[piece.host].ForEach(
        piece.begin, piece.end,
        [&](const std::byte* in, const std::byte*, size_t count) {
          ReducePiece(chunk, own_offset, in, count, out);
          own_offset += count;
          out += count;
        });
  }
  slabs_.Post(Flag::kOut, chunk + 1);
  return Status::Ok();
}

// Goes by blocks: a result is still in the L1 cache when it is copied on.
void BlockReducer::ReducePiece(uint32_t chunk, size_t own_offset,
                               const std::byte* in, size_t count,
                               std::byte* out) {
  constexpr size_t kBlockBytes = 8192;
  alignas(64) std::byte block[kBlockBytes];
  for (size_t done = 0; done < count; done += kBlockBytes) {
    const size_t n = std::min(kBlockBytes, count - done);
    for (int peer = 0; peer < size_; ++peer) {
      sources_[static_cast<size_t>(peer)] =
          peer == rank_ ? in + done
                        : slabs_.slot(peer, chunk) + own_offset + done;
    }
    Reduce(spec_, sources_.data(), size_, block, n / ElementBytes(spec_.dtype));
    CopyToShared(out + done, block, n);
  }
}

}  // namespace hvd
