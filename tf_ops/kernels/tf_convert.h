// Converts between our types and TensorFlow's: statuses, dtypes, strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/kernels/tf_c_api.h"

namespace hvd {

// The payload of a TensorFlow error in which Python finds StatusCodeName().
inline constexpr char kErrorPayloadKey[] = "hvd_keras/error";

// The one place where our Status becomes TensorFlow's. The payload carries our
// code's name, so that Python can raise the exception class of that name.
void SetTfStatus(const Status& status, TF_Status* tf_status);

// The other way, for calls into TensorFlow.
Status FromTfStatus(const TF_Status* tf_status);

// Returns InvalidArgument for a type that no collective takes.
Status FromTfDataType(TF_DataType tf_dtype, DataType* dtype);
TF_DataType ToTfDataType(DataType dtype);

// The value of a string tensor with one element.
Status ReadStringScalar(const TF_Tensor* tensor, std::string* value);

// An element of a string tensor, valid as long as the tensor is.
std::string_view StringAt(const TF_Tensor* tensor, size_t index);

// Makes an element of a new string tensor `size` bytes long; returns them, to
// be written.
char* MakeStringAt(TF_Tensor* tensor, size_t index, size_t size);

}  // namespace hvd
