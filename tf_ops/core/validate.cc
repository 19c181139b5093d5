#include "tf_ops/core/validate.h"

#include <cmath>
#include <string>

#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

Status ValidateKind(const RequestParams& params, int size) {
  switch (params.kind) {
    case CollectiveKind::kAllreduce:
      if (!std::isfinite(params.prescale) || !std::isfinite(params.postscale)) {
        return Status::InvalidArgument(
            "scale factors must be finite. Received: prescale_factor=" +
            std::to_string(params.prescale) +
            ", postscale_factor=" + std::to_string(params.postscale));
      }
      for (const TensorParams& t : params.tensors) {
        HVD_RETURN_IF_ERROR(CheckReduce(t.dtype, params.op));
        if (t.dtype == DataType::kBool &&
            (params.prescale != 1.0 || params.postscale != 1.0)) {
          return Status::InvalidArgument("an allreduce of bool has no scale");
        }
      }
      return Status::Ok();
    case CollectiveKind::kBroadcast:
      if (params.root_rank < 0 || params.root_rank >= size) {
        return Status::InvalidArgument(
            "`root_rank` must be in [0, " + std::to_string(size) +
            "). Received: root_rank=" + std::to_string(params.root_rank));
      }
      return Status::Ok();
    case CollectiveKind::kAllgather:
      for (const TensorParams& t : params.tensors) {
        if (!t.shape.empty()) continue;
        return Status::InvalidArgument(
            "an allgather needs tensors of at least one dimension. Received: "
            "a scalar; expand its dimensions first");
      }
      return Status::Ok();
  }
  return Status::InvalidArgument("unknown kind of collective");
}

}  // namespace

Status ValidateParams(const RequestParams& params, int size) {
  if (params.process_set_id != 0) {
    return Status::InvalidArgument(
        "the process set must be 0, all ranks. Received: process_set_id=" +
        std::to_string(params.process_set_id));
  }
  return ValidateKind(params, size);
}

}  // namespace hvd
