#include "tf_ops/xla/ffi_request.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tf_ops/process/global_engine.h"

namespace hvd {
namespace {

using xla::ffi::AnyBuffer;
using xla::ffi::Dictionary;
using xla::ffi::ErrorCode;
using XlaType = xla::ffi::DataType;

struct TypePair {
  XlaType xla_dtype;
  DataType dtype;
};

constexpr TypePair kTypePairs[kNumDataTypes] = {
    {XlaType::PRED, DataType::kBool},
    {XlaType::U8, DataType::kUint8},
    {XlaType::S8, DataType::kInt8},
    {XlaType::U16, DataType::kUint16},
    {XlaType::S16, DataType::kInt16},
    {XlaType::U32, DataType::kUint32},
    {XlaType::S32, DataType::kInt32},
    {XlaType::U64, DataType::kUint64},
    {XlaType::S64, DataType::kInt64},
    {XlaType::F16, DataType::kFloat16},
    {XlaType::BF16, DataType::kBfloat16},
    {XlaType::F32, DataType::kFloat32},
    {XlaType::F64, DataType::kFloat64},
    {XlaType::F8E4M3FN, DataType::kFloat8E4m3fn},
    {XlaType::F8E5M2, DataType::kFloat8E5m2},
};

constexpr char kCureOfRows[] =
    ". With XLA all ranks must give the same number of rows: pad them. For "
    "gradients of embeddings, use batches of equal size or "
    "`sparse_as_dense=True`. Or compile without XLA (`jit_compile=False`)";

ErrorCode CodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return ErrorCode::kOk;
    case StatusCode::kInvalidArgument:
      return ErrorCode::kInvalidArgument;
    case StatusCode::kMismatch:
    case StatusCode::kNotInitialized:
      return ErrorCode::kFailedPrecondition;
    case StatusCode::kPeerLost:
      return ErrorCode::kUnknown;  // as the plain ops, see tf_convert.cc
    case StatusCode::kStalled:
      return ErrorCode::kDeadlineExceeded;
    case StatusCode::kShutdown:
      return ErrorCode::kAborted;
    case StatusCode::kInternal:
    case StatusCode::kDamagedFile:
      return ErrorCode::kInternal;
  }
  return ErrorCode::kInternal;
}

Status FromXlaType(XlaType xla_dtype, DataType* dtype) {
  for (const TypePair& pair : kTypePairs) {
    if (pair.xla_dtype != xla_dtype) continue;
    *dtype = pair.dtype;
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "a tensor must be of type bool, (u)int8 to (u)int64, float16, bfloat16, "
      "float32, float64, float8_e4m3fn or float8_e5m2. Received: XLA's type "
      "number " +
      std::to_string(static_cast<int>(xla_dtype)));
}

Shape ShapeOf(const AnyBuffer& buffer) {
  return Shape(buffer.dimensions().begin(), buffer.dimensions().end());
}

template <typename T>
Status Read(const Dictionary& attributes, const char* name, T* value) {
  auto read = attributes.get<T>(name);
  if (!read.has_value()) {
    return Status::InvalidArgument("attribute `" + std::string(name) +
                                   "`: " + read.error().message());
  }
  *value = *read;
  return Status::Ok();
}

Status ReadReduction(const Dictionary& attributes, Request* request) {
  int32_t op = 0;
  HVD_RETURN_IF_ERROR(Read(attributes, "reduce_op", &op));
  if (op < 0 || op > static_cast<int32_t>(ReduceOp::kProduct)) {
    return Status::InvalidArgument(
        "attribute `reduce_op` must be in [0, 5]. Received: " +
        std::to_string(op));
  }
  request->op = static_cast<ReduceOp>(op);
  HVD_RETURN_IF_ERROR(Read(attributes, "prescale", &request->prescale));
  HVD_RETURN_IF_ERROR(Read(attributes, "postscale", &request->postscale));
  if (!attributes.contains("wire_format")) return Status::Ok();
  int32_t format = 0;
  HVD_RETURN_IF_ERROR(Read(attributes, "wire_format", &format));
  return ToWireFormat(format, &request->wire_format);
}

Status ReadAttributes(const Dictionary& attributes, Request* request) {
  std::string_view name;
  HVD_RETURN_IF_ERROR(Read(attributes, "name", &name));
  request->name = name;
  HVD_RETURN_IF_ERROR(
      Read(attributes, "process_set_id", &request->process_set_id));
  switch (request->kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReducescatter:
      return ReadReduction(attributes, request);
    case CollectiveKind::kBroadcast:
      return Read(attributes, "root_rank", &request->root_rank);
    default:
      return Status::Ok();
  }
}

// The shape of a result; `shape` is that of its tensor, which is no scalar.
Shape ResultShape(CollectiveKind kind, Shape shape, int64_t size,
                  int64_t index) {
  if (kind == CollectiveKind::kAllgather) shape[0] *= size;
  if (kind == CollectiveKind::kReducescatter) {
    shape[0] = shape[0] / size + (index < shape[0] % size ? 1 : 0);
  }
  return shape;
}

// Checks the shapes of the results, whose memory XLA has allocated: a compiled
// program has them from the job that it was traced in.
Status CheckResults(const Request& request, const std::vector<Shape>& results) {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine == nullptr) return Status::Ok();  // SubmitGlobal reports it
  std::vector<int> ranks;
  HVD_RETURN_IF_ERROR(ProcessSetRanks(request.process_set_id, &ranks));
  const int64_t index =
      std::lower_bound(ranks.begin(), ranks.end(), engine->rank()) -
      ranks.begin();
  for (size_t i = 0; i < results.size(); ++i) {
    const Shape& shape = request.tensors[i].shape;
    if (shape.empty()) continue;  // the ranks will refuse it together
    const Shape wanted = ResultShape(request.kind, shape,
                                     static_cast<int64_t>(ranks.size()), index);
    if (results[i] == wanted) continue;
    return Status::InvalidArgument(
        "result " + std::to_string(i) + " must have shape " +
        ShapeToString(wanted) + ". Received: " + ShapeToString(results[i]) +
        ". Trace the function again: it was compiled for another number of "
        "ranks, or for another rank");
  }
  return Status::Ok();
}

Status ReadBuffers(xla::ffi::RemainingArgs operands,
                   xla::ffi::RemainingRets results, bool has_token,
                   Request* request) {
  if (operands.size() != results.size() ||
      (has_token && operands.size() == 0)) {
    return Status::InvalidArgument(
        "a call must have as many results as operands, with `has_token` at "
        "least one. Received: " +
        std::to_string(operands.size()) + " operands, " +
        std::to_string(results.size()) + " results");
  }
  const size_t num_tensors = operands.size() - (has_token ? 1 : 0);
  const bool in_place = request->kind == CollectiveKind::kAllreduce ||
                        request->kind == CollectiveKind::kBroadcast;
  std::vector<Shape> result_shapes;
  std::vector<void*> outputs;
  for (size_t i = 0; i < num_tensors; ++i) {
    const AnyBuffer operand = *operands.get<AnyBuffer>(i);
    const AnyBuffer result = **results.get<AnyBuffer>(i);
    RequestTensor tensor;
    HVD_RETURN_IF_ERROR(FromXlaType(operand.element_type(), &tensor.dtype));
    tensor.shape = ShapeOf(operand);
    tensor.input = operand.untyped_data();
    if (in_place) tensor.output = result.untyped_data();
    outputs.push_back(result.untyped_data());
    result_shapes.push_back(ShapeOf(result));
    request->tensors.push_back(std::move(tensor));
    if (operand.element_type() == result.element_type()) continue;
    return Status::InvalidArgument("result " + std::to_string(i) +
                                   " must have the dtype of its operand");
  }
  HVD_RETURN_IF_ERROR(CheckResults(*request, result_shapes));
  if (in_place) return Status::Ok();
  request->equal_rows = request->kind != CollectiveKind::kReducescatter;
  request->allocate_output = [outputs = std::move(outputs)](
                                 size_t index, const Shape&, void** output) {
    *output = outputs[index];
    return Status::Ok();
  };
  return Status::Ok();
}

}  // namespace

Status ToRequest(CollectiveKind kind, xla::ffi::RemainingArgs operands,
                 xla::ffi::RemainingRets results, const Dictionary& attributes,
                 Request* request) {
  request->kind = kind;
  int32_t has_token = 0;
  Status status = ReadAttributes(attributes, request);
  if (status.ok() && attributes.contains("has_token")) {
    status = Read(attributes, "has_token", &has_token);
  }
  if (status.ok()) {
    status = ReadBuffers(operands, results, has_token != 0, request);
  }
  if (status.ok()) return status;
  return status.WithContext(std::string(CollectiveKindName(kind)) + " '" +
                            request->name + "'");
}

xla::ffi::Error ToFfiError(const Status& status, bool equal_rows) {
  std::string text = "hvd_keras.exceptions." +
                     std::string(StatusCodeName(status.code())) +
                     "Error: " + status.message();
  if (status.code() == StatusCode::kMismatch && equal_rows) {
    text += kCureOfRows;
  }
  return xla::ffi::Error(CodeOf(status.code()), std::move(text));
}

}  // namespace hvd
