#include "tf_ops/negotiation/validate.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace hvd {
namespace {

// "an allreduce", "a broadcast"
std::string AKind(CollectiveKind kind) {
  const std::string name = CollectiveKindName(kind);
  return (name[0] == 'a' ? "an " : "a ") + name;
}

Status ValidateReduction(const RequestParams& params) {
  if (params.kind != CollectiveKind::kAllreduce &&
      params.op == ReduceOp::kAdasum) {
    return Status::InvalidArgument("Adasum is for allreduce only. Received: " +
                                   AKind(params.kind));
  }
  if (params.kind != CollectiveKind::kAllreduce &&
      params.wire_format != WireFormat::kExact) {
    return Status::InvalidArgument(
        "a wire format is for allreduce only. Received: " + AKind(params.kind) +
        " with " + WireFormatName(params.wire_format));
  }
  if (!std::isfinite(params.prescale) || !std::isfinite(params.postscale)) {
    return Status::InvalidArgument(
        "scale factors must be finite. Received: prescale_factor=" +
        std::to_string(params.prescale) +
        ", postscale_factor=" + std::to_string(params.postscale));
  }
  for (size_t i = 0; i < params.tensors.size(); ++i) {
    const DataType dtype = params.tensors[i].dtype;
    const bool is_for_nccl =
        params.device != DeviceKind::kCpu && IsFloat8(dtype);
    Status status = is_for_nccl ? Status::Ok() : CheckReduce(dtype, params.op);
    if (status.ok() && dtype == DataType::kBool &&
        (params.prescale != 1.0 || params.postscale != 1.0)) {
      status = Status::InvalidArgument(AKind(params.kind) +
                                       " of bool cannot be scaled");
    }
    if (status.ok()) continue;
    return params.tensors.size() == 1
               ? status
               : status.WithContext("tensor " + std::to_string(i));
  }
  return Status::Ok();
}

Status ValidateRoot(const RequestParams& params,
                    const std::vector<int>& global_ranks) {
  if (std::find(global_ranks.begin(), global_ranks.end(), params.root_rank) !=
      global_ranks.end()) {
    return Status::Ok();
  }
  std::string allowed;
  if (params.process_set_id == 0) {
    allowed = "in [0, " + std::to_string(global_ranks.size()) + ")";
  } else {
    for (int rank : global_ranks) {
      allowed += (allowed.empty() ? "one of ranks " : ", ");
      allowed += std::to_string(rank);
    }
    allowed += " (process set " + std::to_string(params.process_set_id) + ")";
  }
  return Status::InvalidArgument(
      "`root_rank` must be " + allowed +
      ". Received: root_rank=" + std::to_string(params.root_rank));
}

Status RefuseScalars(const RequestParams& params) {
  for (const TensorParams& t : params.tensors) {
    if (!t.shape.empty()) continue;
    return Status::InvalidArgument(
        AKind(params.kind) +
        " needs tensors of at least one dimension. Received: a scalar; expand "
        "its dimensions first");
  }
  return Status::Ok();
}

Status ValidateSplits(const RequestParams& params, int64_t size,
                      const std::string& rank) {
  if (params.tensors.size() != 1) {
    return Status::InvalidArgument("an alltoall takes one tensor. Received: " +
                                   std::to_string(params.tensors.size()) +
                                   " tensors");
  }
  const std::string received =
      ", shape=" + ShapeToString(params.tensors[0].shape) + " on " + rank;
  const int64_t num_rows = params.tensors[0].shape[0];
  if (params.splits.empty()) {
    if (num_rows % size == 0) return Status::Ok();
    return Status::InvalidArgument(
        "without `splits` the first dimension must be a multiple of the " +
        std::to_string(size) + " ranks. Received: no splits" + received);
  }
  int64_t rest = num_rows;
  bool fits = params.splits.size() == static_cast<size_t>(size);
  for (int64_t rows : params.splits) {
    fits = fits && rows >= 0 && rows <= rest;  // a sum could overflow
    if (fits) rest -= rows;
  }
  if (fits && rest == 0) return Status::Ok();
  return Status::InvalidArgument(
      "`splits` must be " + std::to_string(size) +
      " values of at least 0, one for each rank, that sum to the first "
      "dimension. "
      "Received: splits=" +
      ShapeToString(params.splits) + received);
}

// A factor of 8 bits would be too coarse.
bool CanScaleOnGpu(DataType dtype) {
  return IsFloating(dtype) && !IsFloat8(dtype);
}

// Refuses what NCCL has no kernels for: we have no GPU kernels of our own.
Status ValidateReductionOnGpu(const RequestParams& params, DataType dtype) {
  if (params.op == ReduceOp::kAdasum) {
    return Status::InvalidArgument(
        "Adasum does not run on GPUs; copy the tensors to the CPU");
  }
  if (dtype == DataType::kInt16 || dtype == DataType::kUint16) {
    return Status::InvalidArgument(
        std::string("NCCL does not reduce ") + DataTypeName(dtype) +
        "; cast to int32, or copy the tensors to the CPU");
  }
  if (params.prescale == 1.0 && params.postscale == 1.0) return Status::Ok();
  const bool is_sum =
      params.op == ReduceOp::kSum || params.op == ReduceOp::kAverage;
  if (is_sum && CanScaleOnGpu(dtype)) return Status::Ok();
  return Status::InvalidArgument(
      std::string("scale factors on GPUs need Sum or Average and a floating "
                  "dtype of 16 bits or more. Received: op=") +
      ReduceOpName(params.op) + ", dtype=" + DataTypeName(dtype));
}

Status ValidateOnGpu(const RequestParams& params) {
  if (params.device == DeviceKind::kSecondGpu) {
    return Status::InvalidArgument(
        "all tensors of a rank must be on the GPU of its first call. "
        "Received: a tensor on another GPU");
  }
  for (const TensorParams& t : params.tensors) {
    if (params.kind == CollectiveKind::kAllreduce ||
        params.kind == CollectiveKind::kReducescatter) {
      HVD_RETURN_IF_ERROR(ValidateReductionOnGpu(params, t.dtype));
    } else if (params.average && !CanScaleOnGpu(t.dtype)) {
      return Status::InvalidArgument(
          std::string("an average of gathered rows on GPUs needs a floating "
                      "dtype of 16 bits or more. Received: dtype=") +
          DataTypeName(t.dtype));
    }
  }
  return Status::Ok();
}

// Adds up rows of at least 0 each; false if their bytes cannot be counted.
bool SumRows(const std::vector<int64_t>& rows, const TensorParams& tensor,
             int64_t* sum) {
  *sum = 0;
  for (int64_t n : rows) {
    if (n < 0 || __builtin_add_overflow(*sum, n, sum)) return false;
  }
  const Shape row(tensor.shape.begin() + 1, tensor.shape.end());
  int64_t num_bytes = 0;
  return !__builtin_mul_overflow(
      NumElements(row) * static_cast<int64_t>(ElementBytes(tensor.dtype)), *sum,
      &num_bytes);
}

bool HaveSize(const std::vector<std::vector<int64_t>>& rows, size_t size) {
  return std::all_of(rows.begin(), rows.end(),
                     [size](const auto& list) { return list.size() == size; });
}

bool GatheredRowsFit(const RequestParams& params, size_t rank,
                     const std::vector<std::vector<int64_t>>& rows) {
  if (rows.size() != params.tensors.size()) return false;
  int64_t sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorParams& t = params.tensors[i];
    if (t.shape.empty() || rows[i][rank] != t.shape[0]) return false;
    if (!SumRows(rows[i], t, &sum)) return false;
  }
  return true;
}

// Of an alltoall on one host.
bool ExchangedRowsFit(const TensorParams& t, size_t rank, size_t size,
                      const std::vector<std::vector<int64_t>>& rows) {
  if (rows.size() != size) return false;
  int64_t sum = 0;
  std::vector<int64_t> received;
  for (const std::vector<int64_t>& sent : rows) {
    if (!SumRows(sent, t, &sum)) return false;
    received.push_back(sent[rank]);
  }
  return SumRows(received, t, &sum) && SumRows(rows[rank], t, &sum) &&
         sum == t.shape[0];
}

// Whether no other rank but `own` has more than `longest`.
bool AreUpTo(int64_t longest, size_t own, const std::vector<int64_t>& rows) {
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rank != own && rows[rank] > longest) return false;
  }
  return true;
}

bool HostRowsFit(const TensorParams& t, const RankPlace& place,
                 const HostRows& rows) {
  const std::vector<int>& ranks = place.host_ranks;
  if (rows.sent.size() != ranks.size()) return false;
  if (rows.received.size() != ranks.size()) return false;
  int64_t sum = 0;
  if (!SumRows({rows.longest}, t, &sum)) return false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t rank = static_cast<size_t>(ranks[i]);
    if (!SumRows(rows.received[i], t, &sum)) return false;
    if (!SumRows(rows.sent[i], t, &sum)) return false;
    if (ranks[i] == place.rank && sum != t.shape[0]) return false;
    if (!AreUpTo(rows.longest, rank, rows.sent[i])) return false;
    if (!AreUpTo(rows.longest, rank, rows.received[i])) return false;
    for (size_t j = 0; j < ranks.size(); ++j) {  // both say the same
      const size_t peer = static_cast<size_t>(ranks[j]);
      if (rows.sent[i][peer] != rows.received[j][rank]) return false;
    }
  }
  return true;
}

bool RowsFit(const RequestParams& params, const RankPlace& place,
             const ResponseItem& item) {
  const size_t rank = static_cast<size_t>(place.rank);
  const size_t size = static_cast<size_t>(place.size);
  const HostRows& of_host = item.host_rows;
  if (!HaveSize(item.rows, size) || !HaveSize(of_host.sent, size) ||
      !HaveSize(of_host.received, size)) {
    return false;
  }
  if (params.kind == CollectiveKind::kAlltoall) {
    if (params.tensors.size() != 1 || params.tensors[0].shape.empty()) {
      return false;
    }
    const TensorParams& t = params.tensors[0];
    return place.host_ranks.empty()
               ? of_host.sent.empty() &&
                     ExchangedRowsFit(t, rank, size, item.rows)
               : item.rows.empty() && HostRowsFit(t, place, of_host);
  }
  if (!of_host.sent.empty()) return false;
  return params.kind == CollectiveKind::kAllgather
             ? GatheredRowsFit(params, rank, item.rows)
             : item.rows.empty();
}

}  // namespace

Status CheckRows(const RequestParams& params, const RankPlace& place,
                 const ResponseItem& item) {
  if (RowsFit(params, place, item)) return Status::Ok();
  return Status::Internal(
      std::string("the coordinator tells rows that do not fit the ") +
      CollectiveKindName(params.kind) + " of this rank");
}

Status ValidateParams(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks) {
  const RequestParams& params = *by_rank[0];
  if (params.device != DeviceKind::kCpu) {
    HVD_RETURN_IF_ERROR(ValidateOnGpu(params));
  }
  switch (params.kind) {
    case CollectiveKind::kAllreduce:
      return ValidateReduction(params);
    case CollectiveKind::kReducescatter:
      HVD_RETURN_IF_ERROR(ValidateReduction(params));
      return RefuseScalars(params);
    case CollectiveKind::kBroadcast:
      return ValidateRoot(params, global_ranks);
    case CollectiveKind::kAllgather:
      HVD_RETURN_IF_ERROR(RefuseScalars(params));
      for (const TensorParams& t : params.tensors) {
        if (!params.average) break;
        HVD_RETURN_IF_ERROR(CheckReduce(t.dtype, ReduceOp::kAverage));
      }
      return Status::Ok();
    case CollectiveKind::kAlltoall:
      HVD_RETURN_IF_ERROR(RefuseScalars(params));
      for (size_t i = 0; i < by_rank.size(); ++i) {
        HVD_RETURN_IF_ERROR(
            ValidateSplits(*by_rank[i], static_cast<int64_t>(by_rank.size()),
                           "rank " + std::to_string(global_ranks[i])));
      }
      return Status::Ok();
    case CollectiveKind::kBarrier:
      return Status::Ok();
    case CollectiveKind::kJoin:  // has messages of its own
      break;
  }
  return Status::InvalidArgument("unknown kind of collective");
}

}  // namespace hvd
