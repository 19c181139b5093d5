#include "tf_ops/kernels/op_attributes.h"

#include <charconv>
#include <system_error>

#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"

namespace hvd {

Status OpAttributes::Int(const char* name, int32_t* value) const {
  TfStatus status = NewTfStatus();
  TF_OpKernelConstruction_GetAttrInt32(construction_, name, value,
                                       status.get());
  return FromTfStatus(status.get());
}

Status OpAttributes::Bool(const char* name, bool* value) const {
  TfStatus status = NewTfStatus();
  unsigned char raw = 0;
  TF_OpKernelConstruction_GetAttrBool(construction_, name, &raw, status.get());
  *value = raw != 0;
  return FromTfStatus(status.get());
}

Status OpAttributes::String(const char* name, std::string* value) const {
  TfStatus status = NewTfStatus();
  int32_t list_size = 0;
  int32_t num_bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size,
                                      &num_bytes, status.get());
  HVD_RETURN_IF_ERROR(FromTfStatus(status.get()));
  value->assign(static_cast<size_t>(num_bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(construction_, name, value->data(),
                                        value->size(), status.get());
  return FromTfStatus(status.get());
}

Status OpAttributes::Double(const char* name, double* value) const {
  std::string text;
  HVD_RETURN_IF_ERROR(String(name, &text));
  // Not strtod: it obeys the locale that the user's program has set.
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  if (error == std::errc() && stop == end) return Status::Ok();
  return Status::InvalidArgument("Attribute `" + std::string(name) +
                                 "` must be a decimal number. Received: '" +
                                 text + "'.");
}

Status OpAttributes::Common(CommonAttributes* common) const {
  HVD_RETURN_IF_ERROR(Int("process_set_id", &common->process_set_id));
  return Bool("iterations_may_overlap", &common->iterations_may_overlap);
}

Status OpAttributes::Reduction(const char* name, ReduceOp* op) const {
  int32_t number = 0;
  HVD_RETURN_IF_ERROR(Int(name, &number));
  for (ReduceOp known : {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kAdasum,
                         ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (static_cast<int32_t>(known) != number) continue;
    *op = known;
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "Attribute `" + std::string(name) +
      "` must be 0 (Average), 1 (Sum), 2 (Adasum), 3 (Min), 4 (Max) or 5 "
      "(Product). Received: " +
      std::to_string(number) + ".");
}

Status OpAttributes::Format(const char* name, WireFormat* format) const {
  int32_t number = 0;
  HVD_RETURN_IF_ERROR(Int(name, &number));
  return ToWireFormat(number, format);
}

}  // namespace hvd
