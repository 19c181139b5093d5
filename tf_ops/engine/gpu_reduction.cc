#include "tf_ops/engine/gpu_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/gpu/libraries.h"
#include "tf_ops/gpu/scale_kernel.h"

namespace hvd {
namespace {

constexpr int kFirstCapabilityWithFloat8 = 9;
constexpr int kMostExponent = 8;  // every dtype has 2^8

// The exponent of the least power of two of a dtype whose sums could overflow
// where their average does not; 0: of another dtype.
int LeastExponent(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return -24;
    case DataType::kFloat8E4m3fn:
      return -9;
    case DataType::kFloat8E5m2:
      return -16;
    default:
      return 0;
  }
}

// Divides the work of `factor` between the inputs, before NCCL sums them, and
// the result. NCCL rounds a factor of the inputs to the dtype. That is exact
// for a power of two, and harmless for wide floats.
void SplitFactor(double factor, bool sums_in_switch, GpuReduction* r) {
  int exponent = 0;  // factor: a mantissa in [0.5, 1) times 2^exponent
  const double mantissa = std::frexp(factor, &exponent);
  const int least = LeastExponent(r->dtype);
  if (least < 0) {
    r->factor = std::ldexp(1.0, std::clamp(exponent - 1, least, kMostExponent));
    r->scale = factor / r->factor;
    return;
  }
  const bool is_exact = r->dtype != DataType::kBfloat16 || mantissa == 0.5;
  (is_exact && !sums_in_switch ? r->factor : r->scale) = factor;
}

// Which tensors are reduced where they are, and which go through the fusion
// buffer, one batch at a time.
struct AllreducePlan {
  std::vector<GpuTensor> direct;
  std::vector<std::vector<GpuTensor>> batches;
};

size_t Aligned(size_t num_bytes) {
  return (num_bytes + kGpuAlignment - 1) / kGpuAlignment * kGpuAlignment;
}

AllreducePlan PlanAllreduce(const GpuLane& lane,
                            const std::vector<GpuTensor>& tensors) {
  AllreducePlan plan;
  size_t room = 0;
  for (const GpuTensor& t : tensors) {
    if (t.num_bytes == 0) continue;
    const size_t space = Aligned(t.num_bytes);
    if (lane.packing == Packing::kNone || t.num_bytes >= lane.direct_bytes ||
        space > lane.fusion_buffer_bytes) {
      plan.direct.push_back(t);
      continue;
    }
    if (plan.batches.empty() || space > room) {
      plan.batches.emplace_back();
      room = lane.fusion_buffer_bytes;
    }
    room -= space;
    plan.batches.back().push_back(t);
  }
  // A tensor alone in the buffer would only cost copies.
  auto& batches = plan.batches;
  for (const std::vector<GpuTensor>& batch : batches) {
    if (batch.size() == 1) plan.direct.push_back(batch[0]);
  }
  batches.erase(std::remove_if(batches.begin(), batches.end(),
                               [](const std::vector<GpuTensor>& batch) {
                                 return batch.size() == 1;
                               }),
                batches.end());
  return plan;
}

Status ReduceBatch(const GpuLane& lane, const GpuReduction& reduction,
                   const std::vector<GpuTensor>& batch,
                   std::vector<GpuTensor> together_with) {
  std::vector<Gpu::Copy> in;
  std::vector<Gpu::Copy> out;
  std::byte* next = lane.fusion_buffer;
  for (const GpuTensor& t : batch) {
    in.push_back({next, t.input, t.num_bytes});
    out.push_back({t.output, next, t.num_bytes});
    next += Aligned(t.num_bytes);
  }
  const size_t num_bytes = static_cast<size_t>(next - lane.fusion_buffer);
  together_with.push_back({lane.fusion_buffer, lane.fusion_buffer,
                           num_bytes / ElementBytes(reduction.dtype),
                           num_bytes});
  const bool in_batches = lane.packing == Packing::kBatch;
  HVD_RETURN_IF_ERROR(lane.gpu->CopyAll(in, lane.stream, in_batches));
  HVD_RETURN_IF_ERROR(AllreduceEach(lane, reduction, together_with));
  return lane.gpu->CopyAll(out, lane.stream, in_batches);
}

}  // namespace

int NcclType(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kUint32:
      return kNcclUint32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kUint64:
      return kNcclUint64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kBfloat16:
      return kNcclBfloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kFloat8E4m3fn:
      return kNcclFloat8E4m3;
    case DataType::kFloat8E5m2:
      return kNcclFloat8E5m2;
    case DataType::kBool:  // Min and Max of 0 and 1
    case DataType::kUint8:
    case DataType::kInt16:  // ValidateParams refuses these two
    case DataType::kUint16:
      break;
  }
  return kNcclUint8;
}

void StoreScalar(double value, DataType dtype, void* element) {
  const float single = static_cast<float>(value);
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
      NarrowToHalves(dtype, &single, element, 1);
      return;
    case DataType::kFloat8E4m3fn:
      *static_cast<uint8_t*>(element) =
          static_cast<uint8_t>(hvd_scale::Float8E4m3fn::Format::Narrow(single));
      return;
    case DataType::kFloat8E5m2:
      *static_cast<uint8_t*>(element) =
          static_cast<uint8_t>(hvd_scale::Float8E5m2::Format::Narrow(single));
      return;
    case DataType::kFloat32:
      std::memcpy(element, &single, sizeof(single));
      return;
    default:
      std::memcpy(element, &value, sizeof(value));
  }
}

GpuReduction ReductionOf(const Request& request, DataType dtype, int size,
                         int divisor, bool sums_in_switch) {
  GpuReduction r;
  r.dtype = dtype;
  switch (request.op) {
    case ReduceOp::kMin:
      r.op = kNcclMin;
      return r;
    case ReduceOp::kMax:
      r.op = kNcclMax;
      return r;
    case ReduceOp::kProduct:
      r.op = kNcclProd;
      return r;
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kAdasum:  // ValidateParams refuses it
      break;
  }
  double factor = request.prescale * request.postscale;
  if (request.op == ReduceOp::kAverage) {
    if (!IsFloating(dtype)) {  // NCCL sums, then divides
      r.op = kNcclAvg;
      return r;
    }
    factor /= divisor;
  }
  if (factor != 1.0) SplitFactor(factor, sums_in_switch, &r);
  // NCCL may be quicker if it knows what the factor means. On one rank it would
  // multiply by 1, and NCCL 2.30 cannot do that to float8.
  if (r.factor != 1.0 && r.factor * size == 1.0) {
    r.op = kNcclAvg;
    r.factor = 1.0;
  }
  return r;
}

Status WithOp(const Communicator& communicator, const GpuReduction& reduction,
              const NcclApi& nccl, NcclComm comm,
              const std::function<Status(int op)>& use) {
  if (reduction.factor == 1.0) return use(reduction.op);
  alignas(double) std::byte scalar[sizeof(double)];
  StoreScalar(reduction.factor, reduction.dtype, scalar);
  int op = kNcclSum;
  HVD_RETURN_IF_ERROR(communicator.AsStatus(
      nccl.RedOpCreatePreMulSum(&op, scalar, NcclType(reduction.dtype),
                                kNcclScalarHostImmediate, comm),
      "ncclRedOpCreatePreMulSum"));
  const Status status = use(op);
  const int result = nccl.RedOpDestroy(op, comm);
  HVD_RETURN_IF_ERROR(status);
  return communicator.AsStatus(result, "ncclRedOpDestroy");
}

Status AllreduceEach(const GpuLane& lane, const GpuReduction& reduction,
                     const std::vector<GpuTensor>& tensors) {
  const auto calls = [&](const NcclApi& nccl, NcclComm comm) {
    const Communicator& communicator = *lane.communicator;
    return WithOp(communicator, reduction, nccl, comm, [&](int op) -> Status {
      for (const GpuTensor& t : tensors) {
        HVD_RETURN_IF_ERROR(communicator.AsStatus(
            nccl.AllReduce(t.input, t.output, t.num_elements,
                           NcclType(reduction.dtype), op, comm, lane.stream),
            "ncclAllReduce"));
      }
      return Status::Ok();
    });
  };
  HVD_RETURN_IF_ERROR(RunInTurn(lane, calls));
  if (reduction.scale == 1.0) return Status::Ok();
  for (const GpuTensor& t : tensors) {
    HVD_RETURN_IF_ERROR(lane.scaler->Run(reduction.dtype, t.output,
                                         t.num_elements, reduction.scale,
                                         lane.stream));
  }
  return Status::Ok();
}

Status AllreduceFused(const GpuLane& lane, const GpuReduction& reduction,
                      const std::vector<GpuTensor>& tensors) {
  AllreducePlan plan = PlanAllreduce(lane, tensors);
  if (plan.batches.empty()) {
    if (plan.direct.empty()) return Status::Ok();
    return AllreduceEach(lane, reduction, plan.direct);
  }
  for (const std::vector<GpuTensor>& batch : plan.batches) {
    HVD_RETURN_IF_ERROR(
        ReduceBatch(lane, reduction, batch, std::exchange(plan.direct, {})));
  }
  return Status::Ok();
}

Status CheckReduction(const Gpu& gpu, const Request& request) {
  const bool has_float8 =
      (request.kind == CollectiveKind::kAllreduce ||
       request.kind == CollectiveKind::kReducescatter) &&
      std::any_of(request.tensors.begin(), request.tensors.end(),
                  [](const RequestTensor& t) { return IsFloat8(t.dtype); });
  if (!has_float8) return Status::Ok();
  const NcclApi* nccl = nullptr;
  HVD_RETURN_IF_ERROR(OpenNccl(&nccl));
  if (nccl->version < kFirstNcclWithFloat8) {
    std::string found;
    HVD_RETURN_IF_ERROR(DescribeNccl(&found));
    return Status::InvalidArgument(
        "NCCL reduces float8 from version 2.24 on. Received: " + found);
  }
  int major = 0;
  HVD_RETURN_IF_ERROR(gpu.ComputeCapability(&major));
  if (major >= kFirstCapabilityWithFloat8) return Status::Ok();
  return Status::InvalidArgument(
      "NCCL reduces float8 on GPUs of compute capability 9.0 or more. "
      "Received: " +
      std::to_string(major) + ".x on GPU " + std::to_string(gpu.ordinal()));
}

}  // namespace hvd
