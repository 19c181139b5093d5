#include "tf_ops/engine/cpu_plane.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "tf_ops/collectives/adasum.h"
#include "tf_ops/collectives/collectives.h"
#include "tf_ops/collectives/low_rank.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/float_mode.h"
#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

using Lists = std::vector<std::vector<ListTensor>>;  // by rank

ListTensor AsListTensor(const RequestTensor& tensor) {
  return ListTensor{tensor.input, tensor.output, NumBytes(tensor)};
}

std::vector<TensorList> AsTensorLists(Lists lists) {
  std::vector<TensorList> result;
  result.reserve(lists.size());
  for (std::vector<ListTensor>& list : lists) {
    result.emplace_back(std::move(list));
  }
  return result;
}

// Calls run(dtype) for each dtype, in order of first appearance, which is the
// same on all ranks.
template <typename F>
Status ForEachDataType(const std::vector<ReadyRequest>& ready, F run) {
  bool done[kNumDataTypes] = {};
  for (const ReadyRequest& one : ready) {
    for (const RequestTensor& t : one.pending->request.tensors) {
      if (std::exchange(done[static_cast<size_t>(t.dtype)], true)) continue;
      HVD_RETURN_IF_ERROR(run(t.dtype));
    }
  }
  return Status::Ok();
}

ReduceSpec SpecOf(const Request& request, DataType dtype, int divisor) {
  ReduceSpec spec;
  spec.dtype = dtype;
  spec.op = request.op;
  spec.prescale = request.prescale;
  spec.postscale = request.postscale;
  spec.num_ranks = divisor;
  spec.wire_format = request.wire_format;
  return spec;
}

// Names tensor `index` of `request` from step to step: FNV-1a of its name, the
// index and the factors, which give a residual its unit.
uint64_t KeyOf(const Request& request, size_t index) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](const void* from, size_t count) {
    const auto* const bytes = static_cast<const uint8_t*>(from);
    for (size_t i = 0; i < count; ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  };
  mix(request.name.data(), request.name.size());
  mix(&index, sizeof(index));
  mix(&request.op, sizeof(request.op));
  mix(&request.prescale, sizeof(request.prescale));
  mix(&request.postscale, sizeof(request.postscale));
  return hash;
}

// A prescale would change the neutral value of a product. So ranks with values
// of their own first scale them into their outputs, and reduce those.
void PrescaleIntoOutput(ReduceSpec spec, ListTensor* tensor) {
  spec.op = ReduceOp::kSum;
  spec.postscale = 1.0;
  Reduce(spec, &tensor->input, 1, tensor->output,
         tensor->num_bytes / ElementBytes(spec.dtype));
  tensor->input = tensor->output;
}

Status ExecuteAllreduce(Collectives* all, const RunOptions& options,
                        const std::vector<ReadyRequest>& ready) {
  const Request& like = ready[0].pending->request;
  const int divisor = options.divisor == 0 ? all->size() : options.divisor;
  return ForEachDataType(ready, [&](DataType dtype) -> Status {
    ReduceSpec spec = SpecOf(like, dtype, divisor);
    const bool prescale_first = options.divisor != 0 &&
                                like.op == ReduceOp::kProduct &&
                                spec.prescale != 1.0;
    std::vector<ListTensor> list;
    for (const ReadyRequest& one : ready) {
      const Request& request = one.pending->request;
      for (size_t i = 0; i < request.tensors.size(); ++i) {
        if (request.tensors[i].dtype != dtype) continue;
        list.push_back(AsListTensor(request.tensors[i]));
        if (spec.wire_format != WireFormat::kExact) {
          list.back().key = KeyOf(request, i);
          list.back().rows = MatrixOf(request.tensors[i].shape).rows;
        }
        if (prescale_first && !one.is_neutral) {
          PrescaleIntoOutput(spec, &list.back());
        }
      }
    }
    if (prescale_first) spec.prescale = 1.0;
    if (like.op == ReduceOp::kAdasum) {
      return AdasumAllreduce(all, list, spec);
    }
    return all->Allreduce(TensorList(std::move(list)), spec);
  });
}

Status ExecuteBroadcast(Collectives* all, const RunOptions& options,
                        const std::vector<ReadyRequest>& ready) {
  std::vector<ListTensor> list;
  for (const ReadyRequest& one : ready) {
    for (const RequestTensor& t : one.pending->request.tensors) {
      list.push_back(AsListTensor(t));
    }
  }
  const std::vector<int>& ranks = *options.global_ranks;
  const auto root = std::find(ranks.begin(), ranks.end(),
                              ready[0].pending->request.root_rank);
  return all->Broadcast(TensorList(std::move(list)),
                        static_cast<int>(root - ranks.begin()));
}

void DivideBySize(DataType dtype, void* values, size_t num_elements, int size) {
  ReduceSpec spec;
  spec.dtype = dtype;
  spec.op = ReduceOp::kAverage;
  spec.num_ranks = size;
  const void* source = values;
  Reduce(spec, &source, 1, values, num_elements);
}

// Outputs whose shapes the ranks know only once they have met. A rank that has
// no memory for its outputs takes part without them. Each rank says so to all
// others in one byte behind the data, so that the call fails on all or on none.
class AgreedOutputs {
 public:
  AgreedOutputs(const ReadyRequest& ready, int rank, int size)
      : ready_(ready),
        rank_(rank),
        size_(size),
        told_(static_cast<size_t>(size)) {
    own_ = AllocateOutputs(ready, rank, size, &memory_);
    if (own_.ok()) return;
    mine_ = static_cast<uint8_t>(1 + std::min(memory_.size(), kMaxIndex));
    memory_.assign(ready.pending->request.tensors.size(), nullptr);
  }

  // Null for all outputs if one could not be allocated.
  std::byte* memory(size_t index) const {
    return static_cast<std::byte*>(memory_[index]);
  }
  // This rank's byte for all ranks, and where the byte of `peer` goes.
  ListTensor Word(size_t peer) { return {&mine_, &told_[peer], kWordBytes}; }
  static constexpr size_t kWordBytes = 1;

  // Once the bytes have come: the same on all ranks.
  Status Outcome(const std::vector<int>& global_ranks) const {
    for (size_t peer = 0; peer < told_.size(); ++peer) {
      if (told_[peer] == 0) continue;
      const size_t index =
          std::min(told_[peer] - size_t{1}, memory_.size() - 1);
      const int failed = static_cast<int>(peer);
      const std::string what = failed == rank_
                                   ? own_.message()  // with the cause
                                   : TextOf(index, failed);
      return Status::Internal("rank " + std::to_string(global_ranks[peer]) +
                              " " + what);
    }
    return Status::Ok();
  }

 private:
  static constexpr size_t kMaxIndex = 254;

  std::string TextOf(size_t index, int rank) const {
    // Over several hosts a rank does not know what others receive.
    if (ready_.rows.empty()) {
      return "could not allocate output " + std::to_string(index);
    }
    return AllocationText(index, OutputShape(ready_, index, rank, size_));
  }

  const ReadyRequest& ready_;
  const int rank_;
  const int size_;
  Status own_;
  std::vector<void*> memory_;
  uint8_t mine_ = 0;           // 0, or 1 + the first output without memory
  std::vector<uint8_t> told_;  // by rank
};

Status ExecuteAllgather(Collectives* all, const RunOptions& options,
                        ReadyRequest* ready) {
  const Request& request = ready->pending->request;
  const size_t size = static_cast<size_t>(all->size());
  AgreedOutputs outputs(*ready, all->rank(), all->size());
  Lists lists(size);
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const RequestTensor& tensor = request.tensors[i];
    std::byte* next = outputs.memory(i);
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t num_bytes =
          static_cast<size_t>(ready->rows[i][rank]) * RowBytes(tensor);
      lists[rank].push_back(ListTensor{tensor.input, next, num_bytes});
      if (next != nullptr) next += num_bytes;
    }
  }
  for (size_t rank = 0; rank < size; ++rank) {
    lists[rank].push_back(outputs.Word(rank));
  }
  HVD_RETURN_IF_ERROR(all->Allgather(AsTensorLists(std::move(lists))));
  ready->outcome = outputs.Outcome(*options.global_ranks);
  if (!ready->outcome.ok() || !request.average) return Status::Ok();
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const Shape shape = OutputShape(*ready, i, all->rank(), all->size());
    DivideBySize(request.tensors[i].dtype, outputs.memory(i),
                 static_cast<size_t>(NumElements(shape)), all->size());
  }
  return Status::Ok();
}

// What each pair exchanges: its rows and a word.
AlltoallBytes BytesOf(const ReadyRequest& ready, const Collectives& all,
                      size_t row_bytes) {
  const auto as_bytes = [row_bytes](int64_t rows) {
    return static_cast<size_t>(rows) * row_bytes + AgreedOutputs::kWordBytes;
  };
  const auto as_matrix = [&](const std::vector<std::vector<int64_t>>& rows) {
    ByteMatrix bytes;
    for (const std::vector<int64_t>& of_rank : rows) {
      bytes.emplace_back();
      for (int64_t n : of_rank) bytes.back().push_back(as_bytes(n));
    }
    return bytes;
  };
  if (ready.rows.empty()) {
    return {as_matrix(ready.host_rows.sent),
            as_matrix(ready.host_rows.received)};
  }
  return AlltoallBytesOf(all, [&](int from, int to) {
    return as_bytes(
        ready.rows[static_cast<size_t>(from)][static_cast<size_t>(to)]);
  });
}

Status ExecuteAlltoall(Collectives* all, const RunOptions& options,
                       ReadyRequest* ready) {
  const Request& request = ready->pending->request;
  const size_t row_bytes = RowBytes(request.tensors[0]);
  AgreedOutputs outputs(*ready, all->rank(), all->size());
  const std::vector<int64_t> sent_rows = SentRows(*ready, all->rank());
  const std::vector<int64_t> received_rows = ReceivedRows(*ready, all->rank());
  const std::byte* next_in =
      static_cast<const std::byte*>(request.tensors[0].input);
  std::byte* next_out = outputs.memory(0);
  AlltoallLists lists;
  for (int peer = 0; peer < all->size(); ++peer) {
    const size_t index = static_cast<size_t>(peer);
    const ListTensor word = outputs.Word(index);
    const size_t sent = static_cast<size_t>(sent_rows[index]) * row_bytes;
    const size_t received =
        static_cast<size_t>(received_rows[index]) * row_bytes;
    lists.send.emplace_back(
        std::vector<ListTensor>{{next_in, nullptr, sent}, word});
    lists.recv.emplace_back(
        std::vector<ListTensor>{{nullptr, next_out, received}, word});
    next_in += sent;
    if (next_out != nullptr) next_out += received;
  }
  HVD_RETURN_IF_ERROR(all->Alltoall(lists, BytesOf(*ready, *all, row_bytes)));
  ready->outcome = outputs.Outcome(*options.global_ranks);
  if (ready->outcome.ok() && request.take_values != nullptr) {
    ready->outcome = request.take_values(received_rows);
  }
  return Status::Ok();
}

Status ExecuteReducescatter(Collectives* all,
                            const std::vector<ReadyRequest>& ready) {
  const int64_t size = all->size();
  const int64_t own_rank = all->rank();
  return ForEachDataType(ready, [&](DataType dtype) -> Status {
    Lists lists(static_cast<size_t>(size));
    for (const ReadyRequest& one : ready) {
      for (const RequestTensor& tensor : one.pending->request.tensors) {
        if (tensor.dtype != dtype) continue;
        const std::byte* next = static_cast<const std::byte*>(tensor.input);
        for (int64_t rank = 0; rank < size; ++rank) {
          const size_t num_bytes =
              RowBytes(tensor) *
              static_cast<size_t>(RowsOfRank(tensor.shape[0], size, rank));
          lists[static_cast<size_t>(rank)].push_back(ListTensor{
              next, rank == own_rank ? tensor.output : nullptr, num_bytes});
          next += num_bytes;
        }
      }
    }
    return all->Reducescatter(
        AsTensorLists(std::move(lists)),
        SpecOf(ready[0].pending->request, dtype, static_cast<int>(size)));
  });
}

Status MoveData(Collectives* all, const RunOptions& options,
                std::vector<ReadyRequest>* ready) {
  switch (ready->front().pending->request.kind) {
    case CollectiveKind::kAllreduce:
      return ExecuteAllreduce(all, options, *ready);
    case CollectiveKind::kBroadcast:
      return ExecuteBroadcast(all, options, *ready);
    case CollectiveKind::kReducescatter:
      return ExecuteReducescatter(all, *ready);
    case CollectiveKind::kAllgather:
      for (ReadyRequest& one : *ready) {
        HVD_RETURN_IF_ERROR(ExecuteAllgather(all, options, &one));
      }
      return Status::Ok();
    case CollectiveKind::kAlltoall:
      for (ReadyRequest& one : *ready) {
        HVD_RETURN_IF_ERROR(ExecuteAlltoall(all, options, &one));
      }
      return Status::Ok();
    case CollectiveKind::kBarrier:  // all have come
      return Status::Ok();
    case CollectiveKind::kJoin:
      break;
  }
  return Status::Internal("unknown kind of collective");
}

}  // namespace

Status AllocateKnownOutputs(int rank, int size, Request* request) {
  if (request->kind != CollectiveKind::kReducescatter) return Status::Ok();
  for (size_t i = 0; i < request->tensors.size(); ++i) {
    RequestTensor* tensor = &request->tensors[i];
    if (tensor->shape.empty()) return Status::Ok();  // all ranks refuse it
    const Shape shape =
        WithRows(tensor->shape, RowsOfRank(tensor->shape[0], size, rank));
    const Status status = request->allocate_output(i, shape, &tensor->output);
    if (!status.ok()) return status.WithContext(AllocationText(i, shape));
  }
  return Status::Ok();
}

Status CpuPlane::Run(const RunOptions& options,
                     std::vector<ReadyRequest>* ready) {
  const ScopedDenormals denormals;
  return MoveData(collectives_, options, ready);
}

}  // namespace hvd
