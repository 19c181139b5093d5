// A request without its memory: what the ranks compare.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

struct TensorParams {
  DataType dtype = DataType::kFloat32;
  Shape shape;
  bool operator==(const TensorParams& o) const {
    return dtype == o.dtype && shape == o.shape;
  }
  int64_t num_bytes() const {
    return NumElements(shape) * static_cast<int64_t>(ElementBytes(dtype));
  }
};

// What ranks must agree on in a request, and its shapes and splits.
struct RequestParams {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int32_t process_set_id = 0;
  ReduceOp op = ReduceOp::kSum;
  int32_t root_rank = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  WireFormat wire_format = WireFormat::kExact;
  bool average = false;
  bool equal_rows = false;  // holds for all ranks if one of them asks for it
  std::vector<int64_t> splits;
  std::vector<TensorParams> tensors;
  DeviceKind device = DeviceKind::kCpu;
  Status failure;  // see Request

  bool operator==(const RequestParams& o) const;
  int64_t num_bytes() const;
};
using Params = std::shared_ptr<const RequestParams>;
// Of all ranks of a set; null: the rank has joined, or has not come.
using ParamsByRank = std::vector<Params>;

RequestParams ParamsOf(const Request& request);
// Whether ParamsOf(request) == params, without building it.
bool HasParams(const Request& request, const RequestParams& params);

}  // namespace hvd
