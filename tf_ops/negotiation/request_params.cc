#include "tf_ops/negotiation/request_params.h"

#include <algorithm>

namespace hvd {
namespace {

DeviceKind DeviceOf(const Request& request) {
  if (request.gpu.ordinal < 0) return DeviceKind::kCpu;
  return request.gpu.is_second ? DeviceKind::kSecondGpu : DeviceKind::kGpu;
}

}  // namespace

bool RequestParams::operator==(const RequestParams& o) const {
  return kind == o.kind && process_set_id == o.process_set_id && op == o.op &&
         root_rank == o.root_rank && prescale == o.prescale &&
         postscale == o.postscale && wire_format == o.wire_format &&
         average == o.average && equal_rows == o.equal_rows &&
         device == o.device && splits == o.splits && tensors == o.tensors &&
         failure == o.failure;
}

int64_t RequestParams::num_bytes() const {
  int64_t total = 0;
  for (const TensorParams& t : tensors) total += t.num_bytes();
  return total;
}

RequestParams ParamsOf(const Request& request) {
  RequestParams p;
  p.kind = request.kind;
  p.process_set_id = request.process_set_id;
  p.op = request.op;
  p.root_rank = request.root_rank;
  p.prescale = request.prescale;
  p.postscale = request.postscale;
  p.wire_format = request.wire_format;
  p.average = request.average;
  p.equal_rows = request.equal_rows;
  p.device = DeviceOf(request);
  p.failure = request.failure;
  p.splits = request.splits;
  p.tensors.reserve(request.tensors.size());
  for (const RequestTensor& t : request.tensors) {
    p.tensors.push_back(TensorParams{t.dtype, t.shape});
  }
  return p;
}

bool HasParams(const Request& request, const RequestParams& params) {
  const RequestParams& p = params;
  return request.kind == p.kind && request.process_set_id == p.process_set_id &&
         request.op == p.op && request.root_rank == p.root_rank &&
         request.prescale == p.prescale && request.postscale == p.postscale &&
         request.wire_format == p.wire_format && request.average == p.average &&
         request.equal_rows == p.equal_rows && DeviceOf(request) == p.device &&
         request.splits == p.splits && request.failure == p.failure &&
         std::equal(request.tensors.begin(), request.tensors.end(),
                    p.tensors.begin(), p.tensors.end(),
                    [](const RequestTensor& a, const TensorParams& b) {
                      return a.dtype == b.dtype && a.shape == b.shape;
                    });
}

}  // namespace hvd
