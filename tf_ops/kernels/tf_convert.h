// Between our types and TensorFlow's: statuses, element types, strings.
#pragma once

#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/kernels/tf_c_api.h"

namespace hvd {

// Where Python finds StatusCodeName() among a TensorFlow error's payloads.
inline constexpr char kErrorPayloadKey[] = "hvd_keras/error";

// The one place where our Status becomes TensorFlow's. The payload carries the
// name of our code, so that Python can raise the class of that name.
void SetTfStatus(const Status& status, TF_Status* tf_status);

// The other way, for calls of TensorFlow that failed.
Status FromTfStatus(const TF_Status* tf_status);

// Returns InvalidArgument for a type that no collective takes.
Status FromTfDataType(TF_DataType tf_dtype, DataType* dtype);
TF_DataType ToTfDataType(DataType dtype);

// The value of a string tensor with one element.
Status ReadStringScalar(const TF_Tensor* tensor, std::string* value);

}  // namespace hvd
