#include "tf_ops/core/validate.h"

#include <cmath>
#include <string>

#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

Status ValidateKind(const Request& request, int size) {
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
      if (!std::isfinite(request.prescale) ||
          !std::isfinite(request.postscale)) {
        return Status::InvalidArgument(
            "scale factors must be finite. Received: prescale_factor=" +
            std::to_string(request.prescale) +
            ", postscale_factor=" + std::to_string(request.postscale));
      }
      for (const RequestTensor& t : request.tensors) {
        HVD_RETURN_IF_ERROR(CheckReduce(t.dtype, request.op));
      }
      return Status::Ok();
    case CollectiveKind::kBroadcast:
      if (request.root_rank < 0 || request.root_rank >= size) {
        return Status::InvalidArgument(
            "`root_rank` must be in [0, " + std::to_string(size) +
            "). Received: root_rank=" + std::to_string(request.root_rank));
      }
      return Status::Ok();
    case CollectiveKind::kAllgather:
      for (const RequestTensor& t : request.tensors) {
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

Status ValidateRequest(const Request& request, int size) {
  Status status;
  if (request.name.empty()) {
    status = Status::InvalidArgument("`name` must not be empty");
  } else if (request.process_set_id != 0) {
    status = Status::InvalidArgument(
        "the process set must be 0, all ranks. Received: process_set_id=" +
        std::to_string(request.process_set_id));
  } else if (request.tensors.empty()) {
    status = Status::InvalidArgument("there must be at least one tensor");
  } else {
    status = ValidateKind(request, size);
  }
  return status.WithContext(std::string(CollectiveKindName(request.kind)) +
                            " '" + request.name + "'");
}

}  // namespace hvd
