#include "tf_ops/kernels/reduction_kernel.h"

#include <utility>

namespace hvd {

std::vector<const char*> Reduction::AttributeSpecs() {
  return {"reduce_op: int", "prescale_factor: string = '1'",
          "postscale_factor: string = '1'", "wire_format: int = 0",
          // On a GPU: the op ends once its work is queued.
          "done_early: bool = false"};
}

Status Reduction::Read(const OpAttributes& attributes, Reduction* reduction) {
  HVD_RETURN_IF_ERROR(attributes.Reduction("reduce_op", &reduction->op));
  HVD_RETURN_IF_ERROR(
      attributes.Double("prescale_factor", &reduction->prescale_factor));
  HVD_RETURN_IF_ERROR(
      attributes.Double("postscale_factor", &reduction->postscale_factor));
  HVD_RETURN_IF_ERROR(
      attributes.Format("wire_format", &reduction->wire_format));
  HVD_RETURN_IF_ERROR(attributes.Bool("done_early", &reduction->done_early));
  return attributes.Common(&reduction->common);
}

Request Reduction::NewRequest(CollectiveKind kind) const {
  Request request;
  request.kind = kind;
  request.op = op;
  request.prescale = prescale_factor;
  request.postscale = postscale_factor;
  request.wire_format = wire_format;
  request.gpu.done_in_stream_order = done_early;
  request.process_set_id = common.process_set_id;
  return request;
}

void Reduction::Submit(CollectiveKind kind,
                       std::shared_ptr<OpCall> call) const {
  SubmitCall(std::move(call), common, NewRequest(kind));
}

}  // namespace hvd
