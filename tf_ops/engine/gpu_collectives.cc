#include "tf_ops/engine/gpu_collectives.h"

#include <algorithm>
#include <utility>

#include "tf_ops/engine/gpu_reduction.h"
#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

// Calls run(dtype, places of its tensors) for each dtype, in order of first
// appearance, which is the same on all ranks.
struct Place {
  size_t request;
  size_t tensor;
};
template <typename F>
Status ForPlacesOfEachDataType(const std::vector<ReadyRequest>& ready, F run) {
  std::vector<std::pair<DataType, std::vector<Place>>> groups;
  for (size_t k = 0; k < ready.size(); ++k) {
    const auto& tensors = ready[k].pending->request.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      auto group = std::find_if(
          groups.begin(), groups.end(),
          [&](const auto& g) { return g.first == tensors[i].dtype; });
      if (group == groups.end()) {
        groups.push_back({tensors[i].dtype, {}});
        group = groups.end() - 1;
      }
      group->second.push_back({k, i});
    }
  }
  for (const auto& [dtype, places] : groups) {
    HVD_RETURN_IF_ERROR(run(dtype, places));
  }
  return Status::Ok();
}

int DivisorOf(const RunOptions& options, int size) {
  return options.divisor == 0 ? size : options.divisor;
}

Status LaunchAllreduce(const GpuLane& lane, const RunOptions& options,
                       const std::vector<ReadyRequest>& ready) {
  return ForPlacesOfEachDataType(
      ready, [&](DataType dtype, const std::vector<Place>& places) {
        std::vector<GpuTensor> tensors;
        for (const Place& place : places) {
          const RequestTensor& t =
              ready[place.request].pending->request.tensors[place.tensor];
          const size_t num_elements = static_cast<size_t>(NumElements(t.shape));
          tensors.push_back({t.input, t.output, num_elements,
                             num_elements * ElementBytes(dtype)});
        }
        const GpuReduction reduction =
            ReductionOf(ready[0].pending->request, dtype, lane.size,
                        DivisorOf(options, lane.size), lane.sums_in_switch);
        return AllreduceFused(lane, reduction, tensors);
      });
}

Status LaunchBroadcast(const GpuLane& lane, const RunOptions& options,
                       const std::vector<ReadyRequest>& ready) {
  const std::vector<int>& ranks = *options.global_ranks;
  const auto found = std::find(ranks.begin(), ranks.end(),
                               ready[0].pending->request.root_rank);
  const int root = static_cast<int>(found - ranks.begin());
  return RunInTurn(lane, [&](const NcclApi& nccl, NcclComm comm) -> Status {
    for (const ReadyRequest& one : ready) {
      for (const RequestTensor& t : one.pending->request.tensors) {
        const size_t num_bytes = NumBytes(t);
        if (num_bytes == 0) continue;
        HVD_RETURN_IF_ERROR(lane.communicator->AsStatus(
            nccl.Broadcast(t.input, t.output, num_bytes, kNcclInt8, root, comm,
                           lane.stream),
            "ncclBroadcast"));
      }
    }
    return Status::Ok();
  });
}

// Gathers one tensor, which has rows[r] rows on rank r.
Status GatherOne(const GpuLane& lane, const NcclApi& nccl, NcclComm comm,
                 const RequestTensor& tensor, const std::vector<int64_t>& rows,
                 void* output) {
  const size_t row_bytes = RowBytes(tensor);
  if (row_bytes == 0) return Status::Ok();
  if (std::all_of(rows.begin(), rows.end(),
                  [&](int64_t n) { return n == rows[0]; })) {
    if (rows[0] == 0) return Status::Ok();
    return lane.communicator->AsStatus(
        nccl.AllGather(tensor.input, output,
                       static_cast<size_t>(rows[0]) * row_bytes, kNcclInt8,
                       comm, lane.stream),
        "ncclAllGather");
  }
  std::byte* next = static_cast<std::byte*>(output);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const size_t num_bytes = static_cast<size_t>(rows[rank]) * row_bytes;
    if (num_bytes == 0) continue;
    const bool is_own = static_cast<int>(rank) == lane.rank;
    HVD_RETURN_IF_ERROR(lane.communicator->AsStatus(
        nccl.Broadcast(is_own ? tensor.input : next, next, num_bytes, kNcclInt8,
                       static_cast<int>(rank), comm, lane.stream),
        "ncclBroadcast"));
    next += num_bytes;
  }
  return Status::Ok();
}

Status LaunchAllgather(const GpuLane& lane, const ReadyRequest& ready,
                       const std::vector<void*>& outputs) {
  const Request& request = ready.pending->request;
  const Status gathered =
      RunInTurn(lane, [&](const NcclApi& nccl, NcclComm comm) -> Status {
        for (size_t i = 0; i < request.tensors.size(); ++i) {
          HVD_RETURN_IF_ERROR(GatherOne(lane, nccl, comm, request.tensors[i],
                                        ready.rows[i], outputs[i]));
        }
        return Status::Ok();
      });
  if (!gathered.ok() || !request.average || lane.size == 1) return gathered;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const RequestTensor& t = request.tensors[i];
    int64_t num_rows = 0;
    for (int64_t rows : ready.rows[i]) num_rows += rows;
    const size_t num_bytes = static_cast<size_t>(num_rows) * RowBytes(t);
    HVD_RETURN_IF_ERROR(lane.scaler->Run(t.dtype, outputs[i],
                                         num_bytes / ElementBytes(t.dtype),
                                         1.0 / lane.size, lane.stream));
  }
  return Status::Ok();
}

Status LaunchAlltoall(const GpuLane& lane, const ReadyRequest& ready,
                      void* output) {
  const RequestTensor& tensor = ready.pending->request.tensors[0];
  const size_t row_bytes = RowBytes(tensor);
  const std::vector<int64_t> sent_rows = SentRows(ready, lane.rank);
  const std::vector<int64_t> received_rows = ReceivedRows(ready, lane.rank);
  return RunInTurn(lane, [&](const NcclApi& nccl, NcclComm comm) -> Status {
    const std::byte* next_in = static_cast<const std::byte*>(tensor.input);
    std::byte* next_out = static_cast<std::byte*>(output);
    for (size_t peer = 0; peer < sent_rows.size(); ++peer) {
      const size_t sent = static_cast<size_t>(sent_rows[peer]) * row_bytes;
      const size_t received =
          static_cast<size_t>(received_rows[peer]) * row_bytes;
      if (sent > 0) {
        HVD_RETURN_IF_ERROR(lane.communicator->AsStatus(
            nccl.Send(next_in, sent, kNcclInt8, static_cast<int>(peer), comm,
                      lane.stream),
            "ncclSend"));
      }
      if (received > 0) {
        HVD_RETURN_IF_ERROR(lane.communicator->AsStatus(
            nccl.Recv(next_out, received, kNcclInt8, static_cast<int>(peer),
                      comm, lane.stream),
            "ncclRecv"));
      }
      next_in += sent;
      next_out += received;
    }
    return Status::Ok();
  });
}

Status ScatterOne(const GpuLane& lane, const NcclApi& nccl, NcclComm comm,
                  int op, const RequestTensor& tensor, void* output) {
  const int64_t size = lane.size;
  const int64_t num_rows = tensor.shape[0];
  const size_t row_bytes = RowBytes(tensor);
  const size_t row_elements = row_bytes / ElementBytes(tensor.dtype);
  const int type = NcclType(tensor.dtype);
  if (num_rows == 0 || row_bytes == 0) return Status::Ok();
  if (num_rows % size == 0) {
    return lane.communicator->AsStatus(
        nccl.ReduceScatter(tensor.input, output,
                           static_cast<size_t>(num_rows / size) * row_elements,
                           type, op, comm, lane.stream),
        "ncclReduceScatter");
  }
  const std::byte* next = static_cast<const std::byte*>(tensor.input);
  for (int64_t rank = 0; rank < size; ++rank) {
    const size_t rows = static_cast<size_t>(RowsOfRank(num_rows, size, rank));
    if (rows == 0) continue;
    HVD_RETURN_IF_ERROR(lane.communicator->AsStatus(
        nccl.Reduce(next, rank == lane.rank ? output : nullptr,
                    rows * row_elements, type, op, static_cast<int>(rank), comm,
                    lane.stream),
        "ncclReduce"));
    next += rows * row_bytes;
  }
  return Status::Ok();
}

// Scales the part of this rank.
Status ScalePart(const GpuLane& lane, const GpuReduction& reduction,
                 const RequestTensor& tensor, void* output) {
  if (reduction.scale == 1.0) return Status::Ok();
  const int64_t rows = RowsOfRank(tensor.shape[0], lane.size, lane.rank);
  const size_t num_bytes = static_cast<size_t>(rows) * RowBytes(tensor);
  return lane.scaler->Run(tensor.dtype, output,
                          num_bytes / ElementBytes(tensor.dtype),
                          reduction.scale, lane.stream);
}

Status LaunchReducescatter(const GpuLane& lane, const RunOptions& options,
                           const std::vector<ReadyRequest>& ready,
                           const GpuOutputs& outputs) {
  return ForPlacesOfEachDataType(ready, [&](DataType dtype,
                                            const std::vector<Place>& places) {
    const GpuReduction reduction =
        ReductionOf(ready[0].pending->request, dtype, lane.size,
                    DivisorOf(options, lane.size), lane.sums_in_switch);
    const auto calls = [&](const NcclApi& nccl, NcclComm comm) {
      return WithOp(*lane.communicator, reduction, nccl, comm,
                    [&](int op) -> Status {
                      for (const Place& p : places) {
                        HVD_RETURN_IF_ERROR(ScatterOne(
                            lane, nccl, comm, op,
                            ready[p.request].pending->request.tensors[p.tensor],
                            outputs[p.request][p.tensor]));
                      }
                      return Status::Ok();
                    });
    };
    HVD_RETURN_IF_ERROR(RunInTurn(lane, calls));
    for (const Place& p : places) {
      HVD_RETURN_IF_ERROR(ScalePart(
          lane, reduction, ready[p.request].pending->request.tensors[p.tensor],
          outputs[p.request][p.tensor]));
    }
    return Status::Ok();
  });
}

Status LaunchBarrier(const GpuLane& lane) {
  const GpuReduction any{DataType::kUint8, kNcclMax};
  return AllreduceEach(lane, any,
                       {{lane.fusion_buffer, lane.fusion_buffer, 1, 1}});
}

}  // namespace

Status RunInTurn(const GpuLane& lane, const Communicator::Calls& calls) {
  std::shared_ptr<GpuEvent>& last = *lane.last_calls;
  if (last != nullptr) HVD_RETURN_IF_ERROR(lane.gpu->Wait(lane.stream, *last));
  HVD_RETURN_IF_ERROR(lane.communicator->Run(calls, lane.look));
  return lane.gpu->Record(lane.stream, &last);
}

Status AllocateOutputs(const std::vector<ReadyRequest>& ready, int rank,
                       int size, GpuOutputs* outputs) {
  for (const ReadyRequest& one : ready) {
    outputs->emplace_back();
    HVD_RETURN_IF_ERROR(AllocateOutputs(one, rank, size, &outputs->back()));
  }
  return Status::Ok();
}

Status CheckDivisor(const RunOptions& options,
                    const std::vector<ReadyRequest>& ready) {
  const Request& request = ready[0].pending->request;
  if (options.divisor == 0 || request.op != ReduceOp::kAverage) {
    return Status::Ok();
  }
  for (const ReadyRequest& one : ready) {
    for (const RequestTensor& t : one.pending->request.tensors) {
      if (IsFloating(t.dtype) && !IsFloat8(t.dtype)) continue;
      return Status::InvalidArgument(
          std::string("once a rank has joined, an average on GPUs needs a "
                      "floating dtype of 16 bits or more. Received: dtype=") +
          DataTypeName(t.dtype));
    }
  }
  return Status::Ok();
}

Status LaunchCollectives(const GpuLane& lane, const RunOptions& options,
                         const std::vector<ReadyRequest>& ready,
                         const GpuOutputs& outputs) {
  switch (ready[0].pending->request.kind) {
    case CollectiveKind::kAllreduce:
      return LaunchAllreduce(lane, options, ready);
    case CollectiveKind::kBroadcast:
      return LaunchBroadcast(lane, options, ready);
    case CollectiveKind::kReducescatter:
      return LaunchReducescatter(lane, options, ready, outputs);
    case CollectiveKind::kAllgather:
      for (size_t i = 0; i < ready.size(); ++i) {
        HVD_RETURN_IF_ERROR(LaunchAllgather(lane, ready[i], outputs[i]));
      }
      return Status::Ok();
    case CollectiveKind::kAlltoall:
      for (size_t i = 0; i < ready.size(); ++i) {
        HVD_RETURN_IF_ERROR(LaunchAlltoall(lane, ready[i], outputs[i][0]));
      }
      return Status::Ok();
    case CollectiveKind::kBarrier:
      return LaunchBarrier(lane);
    case CollectiveKind::kJoin:
      break;
  }
  return Status::Internal("unknown kind of collective");
}

}  // namespace hvd
