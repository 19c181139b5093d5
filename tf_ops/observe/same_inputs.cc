#include "tf_ops/observe/same_inputs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tf_ops/collectives/half.h"

namespace hvd {
namespace {

constexpr size_t kTensors = 8;  // of a request, of which values are kept
constexpr size_t kValues = 8;   // of a tensor
constexpr size_t kFewest = 4;   // that must not be 0

// Ranks may round a little differently. 0: a type whose values are not read.
double Tolerance(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 0x1p-9;
    case DataType::kBfloat16:
      return 0x1p-6;
    case DataType::kFloat32:
    case DataType::kFloat64:
      return 1e-5;
    default:
      return 0.0;
  }
}

double ValueAt(DataType dtype, const void* values, size_t index) {
  switch (dtype) {
    case DataType::kFloat16:
      return static_cast<double>(
          FromFloat16(static_cast<const uint16_t*>(values)[index]));
    case DataType::kBfloat16:
      return static_cast<double>(
          FromBfloat16(static_cast<const uint16_t*>(values)[index]));
    case DataType::kFloat32:
      return static_cast<double>(static_cast<const float*>(values)[index]);
    default:
      return static_cast<const double*>(values)[index];
  }
}

}  // namespace

void SameInputs::Begin(const Request& request) {
  const bool is_sum =
      request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  if (has_other_ || size_ == 1 || request.process_set_id != 0 ||
      request.kind != CollectiveKind::kAllreduce || !is_sum) {
    return;
  }
  if (request.gpu.ordinal >= 0 || request.wire_format != WireFormat::kExact) {
    has_other_ = true;
    return;
  }
  const double factor = request.prescale * request.postscale *
                        (request.op == ReduceOp::kSum ? size_ : 1);
  std::vector<Value> kept;
  const size_t num_tensors = request.tensors.size();
  const size_t num_looked_at = std::min(num_tensors, kTensors);
  for (size_t i = 0; i < num_looked_at; ++i) {
    const size_t number = i * num_tensors / num_looked_at;
    const RequestTensor& tensor = request.tensors[number];
    if (Tolerance(tensor.dtype) == 0.0) continue;
    const auto count = static_cast<size_t>(NumElements(tensor.shape));
    const size_t num_values = std::min(count, kValues);
    for (size_t k = 0; k < num_values; ++k) {
      const size_t index = k * count / num_values;
      const double value = ValueAt(tensor.dtype, tensor.input, index);
      kept.push_back({number, index, value * factor});
    }
  }
  running_[request.number] = std::move(kept);
}

void SameInputs::End(const Request& request, bool is_ok) {
  const auto found = running_.find(request.number);
  if (found == running_.end()) return;
  const std::vector<Value> kept = std::move(found->second);
  running_.erase(found);
  if (!is_ok || has_other_) return;
  size_t num_used = 0;
  for (const Value& value : kept) {
    const RequestTensor& tensor = request.tensors[value.tensor];
    const double result = ValueAt(tensor.dtype, tensor.output, value.index);
    const double most = std::fabs(value.expected) * Tolerance(tensor.dtype);
    // Written so that NaN differs.
    if (!(std::fabs(result - value.expected) <= most)) {
      has_other_ = true;
      return;
    }
    if (result != 0.0) ++num_used;
  }
  if (num_used >= kFewest) ++num_;
}

}  // namespace hvd
