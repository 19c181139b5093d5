#include "tf_ops/engine/ready_request.h"

#include <utility>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

// Scaling comes later: the value must be neutral once scaled.
ReduceOp NeutralOp(const RequestParams& params) {
  if (params.op == ReduceOp::kProduct) return params.op;
  if (params.prescale == 0.0) return ReduceOp::kSum;
  if (params.prescale > 0.0) return params.op;
  if (params.op == ReduceOp::kMin) return ReduceOp::kMax;
  return params.op == ReduceOp::kMax ? ReduceOp::kMin : params.op;
}

}  // namespace

ReadyRequest MakeNeutral(const std::string& name, const RequestParams& params) {
  ReadyRequest ready;
  ready.is_neutral = true;
  ready.pending = std::make_unique<PendingRequest>();
  ready.pending->params = std::make_shared<RequestParams>(params);
  Request& request = ready.pending->request;
  request.kind = params.kind;
  request.name = name;
  request.process_set_id = params.process_set_id;
  request.op = params.op;
  request.prescale = params.prescale;
  request.postscale = params.postscale;
  request.wire_format = params.wire_format;
  for (const TensorParams& t : params.tensors) {
    RequestTensor tensor;
    tensor.dtype = t.dtype;
    tensor.shape = t.shape;
    ready.memory.emplace_back(new std::byte[NumBytes(tensor)]);
    tensor.input = tensor.output = ready.memory.back().get();
    FillNeutral(t.dtype, NeutralOp(params), tensor.output,
                static_cast<size_t>(NumElements(t.shape)));
    request.tensors.push_back(std::move(tensor));
  }
  return ready;
}

std::vector<int64_t> SentRows(const ReadyRequest& ready, int rank) {
  return ready.rows.empty() ? ready.host_rows.sent[ready.member]
                            : ready.rows[static_cast<size_t>(rank)];
}

std::vector<int64_t> ReceivedRows(const ReadyRequest& ready, int rank) {
  if (ready.rows.empty()) return ready.host_rows.received[ready.member];
  std::vector<int64_t> received;
  for (const std::vector<int64_t>& rows : ready.rows) {
    received.push_back(rows[static_cast<size_t>(rank)]);
  }
  return received;
}

Shape OutputShape(const ReadyRequest& ready, size_t index, int rank, int size) {
  const Request& request = ready.pending->request;
  const Shape& shape = request.tensors[index].shape;
  int64_t num_rows = 0;
  if (request.kind == CollectiveKind::kReducescatter) {
    num_rows = RowsOfRank(shape[0], size, rank);
  } else if (request.kind == CollectiveKind::kAlltoall) {
    for (int64_t rows : ReceivedRows(ready, rank)) num_rows += rows;
  } else {
    for (int64_t rows : ready.rows[index]) num_rows += rows;
  }
  return WithRows(shape, num_rows);
}

Status AllocateOutputs(const ReadyRequest& ready, int rank, int size,
                       std::vector<void*>* outputs) {
  const Request& request = ready.pending->request;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    void* output = request.tensors[i].output;
    if (request.allocate_output != nullptr) {
      const Shape shape = OutputShape(ready, i, rank, size);
      const Status status = request.allocate_output(i, shape, &output);
      if (!status.ok()) return status.WithContext(AllocationText(i, shape));
    }
    outputs->push_back(output);
  }
  return Status::Ok();
}

std::string AllocationText(size_t index, const Shape& shape) {
  return "could not allocate output " + std::to_string(index) + " of shape " +
         ShapeToString(shape);
}

}  // namespace hvd
