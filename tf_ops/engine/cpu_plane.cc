#include "tf_ops/engine/cpu_plane.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/host/adasum.h"
#include "tf_ops/collectives/host/allgather.h"
#include "tf_ops/collectives/host/allreduce.h"
#include "tf_ops/collectives/host/alltoall.h"
#include "tf_ops/collectives/host/broadcast.h"
#include "tf_ops/collectives/host/reducescatter.h"
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

// Calls run(dtype) for each dtype, in the order in which they first appear,
// which is the same on all ranks.
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
  return spec;
}

// A prescale would change the neutral value of a product: the ranks that have
// one scale it into their outputs first, and reduce those.
void PrescaleIntoOutput(ReduceSpec spec, ListTensor* tensor) {
  spec.op = ReduceOp::kSum;
  spec.postscale = 1.0;
  Reduce(spec, &tensor->input, 1, tensor->output,
         tensor->num_bytes / ElementBytes(spec.dtype));
  tensor->input = tensor->output;
}

Status ExecuteAllreduce(HostSlabs* slabs, const RunOptions& options,
                        const std::vector<ReadyRequest>& ready) {
  const Request& like = ready[0].pending->request;
  const int divisor = options.divisor == 0 ? slabs->size() : options.divisor;
  return ForEachDataType(ready, [&](DataType dtype) -> Status {
    ReduceSpec spec = SpecOf(like, dtype, divisor);
    const bool prescale_first = options.divisor != 0 &&
                                like.op == ReduceOp::kProduct &&
                                spec.prescale != 1.0;
    std::vector<ListTensor> list;
    for (const ReadyRequest& one : ready) {
      for (const RequestTensor& t : one.pending->request.tensors) {
        if (t.dtype != dtype) continue;
        list.push_back(AsListTensor(t));
        if (prescale_first && !one.is_neutral) {
          PrescaleIntoOutput(spec, &list.back());
        }
      }
    }
    if (prescale_first) spec.prescale = 1.0;
    if (like.op == ReduceOp::kAdasum) {
      return AdasumAllreduce(slabs, list, spec);
    }
    return Allreduce(slabs, TensorList(std::move(list)), spec);
  });
}

Status ExecuteBroadcast(HostSlabs* slabs, const RunOptions& options,
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
  return Broadcast(slabs, TensorList(std::move(list)),
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

Status ExecuteAllgather(HostSlabs* slabs, const ReadyRequest& ready) {
  const Request& request = ready.pending->request;
  const size_t size = static_cast<size_t>(slabs->size());
  Lists lists(size);
  std::vector<std::pair<void*, size_t>> outputs;  // and elements
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const RequestTensor& tensor = request.tensors[i];
    int64_t num_rows = 0;
    for (int64_t rows : ready.rows[i]) num_rows += rows;
    const Shape shape = WithRows(tensor.shape, num_rows);
    void* output = nullptr;
    HVD_RETURN_IF_ERROR(request.allocate_output(i, shape, &output));
    outputs.emplace_back(output, static_cast<size_t>(NumElements(shape)));
    std::byte* next = static_cast<std::byte*>(output);
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t num_bytes =
          static_cast<size_t>(ready.rows[i][rank]) * RowBytes(tensor);
      lists[rank].push_back(ListTensor{tensor.input, next, num_bytes});
      next += num_bytes;
    }
  }
  HVD_RETURN_IF_ERROR(Allgather(slabs, AsTensorLists(std::move(lists))));
  for (size_t i = 0; request.average && i < outputs.size(); ++i) {
    DivideBySize(request.tensors[i].dtype, outputs[i].first, outputs[i].second,
                 slabs->size());
  }
  return Status::Ok();
}

Status ExecuteAlltoall(HostSlabs* slabs, const ReadyRequest& ready) {
  const RequestTensor& tensor = ready.pending->request.tensors[0];
  const size_t rank = static_cast<size_t>(slabs->rank());
  const size_t row_bytes = RowBytes(tensor);
  ByteMatrix num_bytes;
  for (const std::vector<int64_t>& rows : ready.rows) {
    num_bytes.emplace_back();
    for (int64_t n : rows) {
      num_bytes.back().push_back(static_cast<size_t>(n) * row_bytes);
    }
  }
  int64_t num_rows = 0;
  for (int64_t rows : ReceivedRows(ready, slabs->rank())) num_rows += rows;
  void* output = nullptr;
  HVD_RETURN_IF_ERROR(ready.pending->request.allocate_output(
      0, WithRows(tensor.shape, num_rows), &output));
  const std::byte* next_in = static_cast<const std::byte*>(tensor.input);
  std::byte* next_out = static_cast<std::byte*>(output);
  AlltoallLists lists;
  for (size_t peer = 0; peer < num_bytes.size(); ++peer) {
    const size_t sent = num_bytes[rank][peer];
    const size_t received = num_bytes[peer][rank];
    lists.send.emplace_back(std::vector<ListTensor>{{next_in, nullptr, sent}});
    lists.recv.emplace_back(
        std::vector<ListTensor>{{nullptr, next_out, received}});
    next_in += sent;
    next_out += received;
  }
  return Alltoall(slabs, lists, num_bytes);
}

Status ExecuteReducescatter(HostSlabs* slabs,
                            const std::vector<ReadyRequest>& ready) {
  const int64_t size = slabs->size();
  const int64_t own_rank = slabs->rank();
  std::vector<std::vector<void*>> outputs;  // [request][tensor]
  for (const ReadyRequest& one : ready) {
    const Request& request = one.pending->request;
    outputs.emplace_back(request.tensors.size());
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const Shape& shape = request.tensors[i].shape;
      HVD_RETURN_IF_ERROR(request.allocate_output(
          i, WithRows(shape, RowsOfRank(shape[0], size, own_rank)),
          &outputs.back()[i]));
    }
  }
  return ForEachDataType(ready, [&](DataType dtype) -> Status {
    Lists lists(static_cast<size_t>(size));
    for (size_t k = 0; k < ready.size(); ++k) {
      const Request& request = ready[k].pending->request;
      for (size_t i = 0; i < request.tensors.size(); ++i) {
        const RequestTensor& tensor = request.tensors[i];
        if (tensor.dtype != dtype) continue;
        const std::byte* next = static_cast<const std::byte*>(tensor.input);
        for (int64_t rank = 0; rank < size; ++rank) {
          const size_t num_bytes =
              RowBytes(tensor) *
              static_cast<size_t>(RowsOfRank(tensor.shape[0], size, rank));
          lists[static_cast<size_t>(rank)].push_back(ListTensor{
              next, rank == own_rank ? outputs[k][i] : nullptr, num_bytes});
          next += num_bytes;
        }
      }
    }
    return Reducescatter(
        slabs, AsTensorLists(std::move(lists)),
        SpecOf(ready[0].pending->request, dtype, static_cast<int>(size)));
  });
}

Status MoveData(HostSlabs* slabs, const RunOptions& options,
                const std::vector<ReadyRequest>& ready) {
  const ScopedDenormals denormals;
  switch (ready[0].pending->request.kind) {
    case CollectiveKind::kAllreduce:
      return ExecuteAllreduce(slabs, options, ready);
    case CollectiveKind::kBroadcast:
      return ExecuteBroadcast(slabs, options, ready);
    case CollectiveKind::kReducescatter:
      return ExecuteReducescatter(slabs, ready);
    case CollectiveKind::kAllgather:
      for (const ReadyRequest& one : ready) {
        HVD_RETURN_IF_ERROR(ExecuteAllgather(slabs, one));
      }
      return Status::Ok();
    case CollectiveKind::kAlltoall:
      for (const ReadyRequest& one : ready) {
        HVD_RETURN_IF_ERROR(ExecuteAlltoall(slabs, one));
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

Status CpuPlane::Run(const RunOptions& options,
                     std::vector<ReadyRequest>* ready) {
  HVD_RETURN_IF_ERROR(MoveData(slabs_, options, *ready));
  for (ReadyRequest& one : *ready) {
    const Request& request = one.pending->request;
    if (request.kind == CollectiveKind::kAlltoall &&
        request.take_values != nullptr) {
      one.outcome = request.take_values(ReceivedRows(one, slabs_->rank()));
    }
  }
  return Status::Ok();
}

}  // namespace hvd
