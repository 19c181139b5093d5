#include "tf_ops/core/executor.h"

#include <utility>

#include "tf_ops/collectives/allgather.h"
#include "tf_ops/collectives/allreduce.h"
#include "tf_ops/collectives/broadcast.h"
#include "tf_ops/collectives/tensor_list.h"

namespace hvd {
namespace {

size_t NumBytes(const RequestTensor& tensor) {
  return static_cast<size_t>(NumElements(tensor.shape)) *
         ElementBytes(tensor.dtype);
}

ListTensor AsListTensor(const RequestTensor& tensor) {
  return ListTensor{tensor.input, tensor.output, NumBytes(tensor)};
}

// One allreduce for each dtype, in the order in which they first appear,
// which is the same on all ranks.
Status ExecuteAllreduce(Transport* transport,
                        const std::vector<ReadyRequest>& ready) {
  const Request& like = ready[0].pending->request;
  bool done[kNumDataTypes] = {};
  for (const ReadyRequest& first : ready) {
    for (const RequestTensor& leader : first.pending->request.tensors) {
      if (std::exchange(done[static_cast<size_t>(leader.dtype)], true)) {
        continue;
      }
      std::vector<ListTensor> list;
      for (const ReadyRequest& one : ready) {
        for (const RequestTensor& t : one.pending->request.tensors) {
          if (t.dtype == leader.dtype) list.push_back(AsListTensor(t));
        }
      }
      ReduceSpec spec;
      spec.dtype = leader.dtype;
      spec.op = like.op;
      spec.prescale = like.prescale;
      spec.postscale = like.postscale;
      spec.num_ranks = transport->size();
      HVD_RETURN_IF_ERROR(
          Allreduce(transport, TensorList(std::move(list)), spec));
    }
  }
  return Status::Ok();
}

Status ExecuteBroadcast(Transport* transport,
                        const std::vector<ReadyRequest>& ready) {
  std::vector<ListTensor> list;
  for (const ReadyRequest& one : ready) {
    for (const RequestTensor& t : one.pending->request.tensors) {
      list.push_back(AsListTensor(t));
    }
  }
  return Broadcast(transport, TensorList(std::move(list)),
                   ready[0].pending->request.root_rank);
}

void DivideBySize(DataType dtype, void* values, size_t num_elements, int size) {
  ReduceSpec spec;
  spec.dtype = dtype;
  spec.op = ReduceOp::kAverage;
  spec.num_ranks = size;
  const void* source = values;
  Reduce(spec, &source, 1, values, num_elements);
}

Status ExecuteAllgather(Transport* transport, const ReadyRequest& ready) {
  const Request& request = ready.pending->request;
  const size_t size = static_cast<size_t>(transport->size());
  std::vector<std::vector<ListTensor>> lists(size);
  std::vector<std::pair<void*, size_t>> outputs;  // and elements
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const RequestTensor& tensor = request.tensors[i];
    Shape shape = tensor.shape;
    shape[0] = 1;
    const size_t row_elements = static_cast<size_t>(NumElements(shape));
    shape[0] = 0;
    for (int64_t rows : ready.first_dims[i]) shape[0] += rows;
    void* output = nullptr;
    HVD_RETURN_IF_ERROR(request.allocate_output(i, shape, &output));
    outputs.emplace_back(output, static_cast<size_t>(NumElements(shape)));
    std::byte* next = static_cast<std::byte*>(output);
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t num_bytes = static_cast<size_t>(ready.first_dims[i][rank]) *
                               row_elements * ElementBytes(tensor.dtype);
      lists[rank].push_back(ListTensor{tensor.input, next, num_bytes});
      next += num_bytes;
    }
  }
  std::vector<TensorList> by_rank;
  for (std::vector<ListTensor>& list : lists) {
    by_rank.emplace_back(std::move(list));
  }
  HVD_RETURN_IF_ERROR(Allgather(transport, by_rank));
  for (size_t i = 0; request.average && i < outputs.size(); ++i) {
    DivideBySize(request.tensors[i].dtype, outputs[i].first, outputs[i].second,
                 transport->size());
  }
  return Status::Ok();
}

}  // namespace

Status Execute(Transport* transport, const std::vector<ReadyRequest>& ready) {
  switch (ready[0].pending->request.kind) {
    case CollectiveKind::kAllreduce:
      return ExecuteAllreduce(transport, ready);
    case CollectiveKind::kBroadcast:
      return ExecuteBroadcast(transport, ready);
    case CollectiveKind::kAllgather:
      for (const ReadyRequest& one : ready) {
        HVD_RETURN_IF_ERROR(ExecuteAllgather(transport, one));
      }
      return Status::Ok();
  }
  return Status::Internal("unknown kind of collective");
}

}  // namespace hvd
