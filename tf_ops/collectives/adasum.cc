#include "tf_ops/collectives/adasum.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "tf_ops/collectives/adasum_math.h"
#include "tf_ops/collectives/ranges.h"

namespace hvd {
namespace {

constexpr size_t kLineBytes = 64;

// A part of a tensor in a rank's segment.
struct Piece {
  size_t tensor;   // its index in the batch
  size_t element;  // where the part begins in the segment
  size_t num_elements;
  void* output;
};

// Some of the tensors, seen as one run of bytes that is cut into one segment a
// rank. Each rank
//   1. gets its segment from all ranks: `size` vectors, as accumulators;
//   2. for each level of the tree adds the dot products of its pieces to those
//      of the other ranks, tensor by tensor, and combines its pieces;
//   3. gives its segment of the result to all.
class AdasumBatch {
 public:
  AdasumBatch(Collectives* collectives, std::vector<ListTensor> tensors,
              const ReduceSpec& spec)
      : collectives_(collectives),
        spec_(spec),
        rank_(static_cast<size_t>(collectives->rank())),
        size_(static_cast<size_t>(collectives->size())),
        element_bytes_(ElementBytes(spec.dtype)),
        accumulator_bytes_(AccumulatorBytes(spec.dtype)),
        tensors_(std::move(tensors)),
        run_(tensors_),
        num_elements_(SegmentOf(rank_).size() / element_bytes_) {}

  Status Run() {
    FindPieces();
    vectors_.reset(new (std::nothrow)
                       std::byte[size_ * num_elements_ * accumulator_bytes_]);
    if (vectors_ == nullptr) {
      return Status::Internal("out of memory for an Adasum");
    }
    HVD_RETURN_IF_ERROR(GetSegment());
    for (const auto& level : AdasumLevels(collectives_->size())) {
      HVD_RETURN_IF_ERROR(CombineLevel(level));
    }
    for (const Piece& piece : pieces_) {
      NarrowTo(spec_.dtype, spec_.postscale, Accumulators(0, piece),
               piece.output, piece.num_elements);
    }
    return GiveSegment();
  }

 private:
  Range SegmentOf(size_t rank) const {
    return PartOf(run_.num_bytes(), static_cast<int>(size_),
                  static_cast<int>(rank), kLineBytes);
  }

  // This rank's segment as rank `from` has it: an array of accumulators.
  std::byte* VectorOf(size_t from) const {
    return vectors_.get() + from * num_elements_ * accumulator_bytes_;
  }

  std::byte* Accumulators(int from, const Piece& piece) const {
    return VectorOf(static_cast<size_t>(from)) +
           piece.element * accumulator_bytes_;
  }

  void FindPieces() {
    const Range segment = SegmentOf(rank_);
    size_t begin = 0;  // of the tensor, in the run
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const size_t end = begin + tensors_[i].num_bytes;
      const size_t from = std::max(begin, segment.begin);
      const size_t to = std::min(end, segment.end);
      if (from < to) {
        pieces_.push_back(
            Piece{i, (from - segment.begin) / element_bytes_,
                  (to - from) / element_bytes_,
                  static_cast<std::byte*>(tensors_[i].output) + from - begin});
      }
      begin = end;
    }
  }

  Status GetSegment() {
    AlltoallLists lists;
    // At the end of the accumulators' memory: see WidenInPlace.
    const size_t offset = num_elements_ * (accumulator_bytes_ - element_bytes_);
    for (size_t rank = 0; rank < size_; ++rank) {
      const Range segment = SegmentOf(rank);
      lists.send.push_back(run_.Slice(segment.begin, segment.end));
      lists.recv.emplace_back(std::vector<ListTensor>{ListTensor{
          nullptr, VectorOf(rank) + offset, num_elements_ * element_bytes_}});
    }
    const auto sent = [this](int, int to) {
      return SegmentOf(static_cast<size_t>(to)).size();
    };
    HVD_RETURN_IF_ERROR(
        collectives_->Alltoall(lists, AlltoallBytesOf(*collectives_, sent)));
    for (size_t rank = 0; rank < size_; ++rank) {
      WidenInPlace(spec_.dtype, spec_.prescale, VectorOf(rank), num_elements_);
    }
    return Status::Ok();
  }

  Status CombineLevel(const std::vector<AdasumPair>& level) {
    // By pair, then by tensor; zeros for a tensor that this segment lacks.
    std::vector<AdasumDots> dots(level.size() * tensors_.size());
    for (size_t i = 0; i < level.size(); ++i) {
      for (const Piece& piece : pieces_) {
        dots[i * tensors_.size() + piece.tensor] =
            DotsOf(spec_.dtype, Accumulators(level[i].first, piece),
                   Accumulators(level[i].second, piece), piece.num_elements);
      }
    }
    HVD_RETURN_IF_ERROR(SumOverRanks(&dots));
    for (size_t i = 0; i < level.size(); ++i) {
      for (const Piece& piece : pieces_) {
        CombineInto(spec_.dtype, dots[i * tensors_.size() + piece.tensor],
                    Accumulators(level[i].first, piece),
                    Accumulators(level[i].second, piece), piece.num_elements);
      }
    }
    return Status::Ok();
  }

  Status SumOverRanks(std::vector<AdasumDots>* dots) {
    static_assert(sizeof(AdasumDots) == 3 * sizeof(double));
    ReduceSpec sum;
    sum.dtype = DataType::kFloat64;
    sum.num_ranks = collectives_->size();
    const ListTensor list{dots->data(), dots->data(),
                          dots->size() * sizeof(AdasumDots)};
    return collectives_->Allreduce(TensorList({list}), sum);
  }

  Status GiveSegment() {
    std::vector<TensorList> by_rank;
    for (size_t rank = 0; rank < size_; ++rank) {
      std::vector<ListTensor> list;
      const Range segment = SegmentOf(rank);
      run_.ForEach(segment.begin, segment.end,
                   [&](const std::byte*, std::byte* out, size_t count) {
                     list.push_back(ListTensor{out, out, count});
                   });
      by_rank.emplace_back(std::move(list));
    }
    return collectives_->Allgather(by_rank);
  }

  Collectives* const collectives_;
  const ReduceSpec& spec_;
  const size_t rank_;
  const size_t size_;
  const size_t element_bytes_;
  const size_t accumulator_bytes_;
  const std::vector<ListTensor> tensors_;
  const TensorList run_;       // the same, back to back
  const size_t num_elements_;  // in this rank's segment
  std::vector<Piece> pieces_;  // of this rank's segment
  // This rank's segment as each rank has it, back to back.
  std::unique_ptr<std::byte[]> vectors_;
};

}  // namespace

Status AdasumAllreduce(Collectives* collectives,
                       const std::vector<ListTensor>& tensors,
                       const ReduceSpec& spec) {
  if (collectives->size() == 1) {
    ReduceSpec scale = spec;
    scale.op = ReduceOp::kSum;
    return collectives->Allreduce(TensorList(tensors), scale);
  }
  size_t next = 0;
  while (next < tensors.size()) {
    std::vector<ListTensor> batch;
    size_t num_bytes = 0;
    do {
      num_bytes += tensors[next].num_bytes;
      if (tensors[next].num_bytes > 0) batch.push_back(tensors[next]);
      ++next;
    } while (next < tensors.size() &&
             num_bytes + tensors[next].num_bytes <= kAdasumBatchBytes);
    if (batch.empty()) continue;
    HVD_RETURN_IF_ERROR(AdasumBatch(collectives, std::move(batch), spec).Run());
  }
  return Status::Ok();
}

}  // namespace hvd
