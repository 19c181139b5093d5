#include "tf_ops/kernels/tf_convert.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace hvd {
namespace {

TF_Code TfCode(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return TF_OK;
    case StatusCode::kInvalidArgument:
      return TF_INVALID_ARGUMENT;
    case StatusCode::kMismatch:
    case StatusCode::kNotInitialized:
      return TF_FAILED_PRECONDITION;
    case StatusCode::kPeerLost:
      // Not TF_UNAVAILABLE: from a custom op TensorFlow makes that an internal
      // error, and drops the payload.
      return TF_UNKNOWN;
    case StatusCode::kStalled:
      return TF_DEADLINE_EXCEEDED;
    case StatusCode::kShutdown:
      return TF_ABORTED;
    case StatusCode::kInternal:
      return TF_INTERNAL;
    case StatusCode::kDamagedFile:
      return TF_DATA_LOSS;
  }
  return TF_INTERNAL;
}

struct TypePair {
  TF_DataType tf_dtype;
  DataType dtype;
};

constexpr TypePair kTypePairs[kNumDataTypes] = {
    {TF_BOOL, DataType::kBool},
    {TF_UINT8, DataType::kUint8},
    {TF_INT8, DataType::kInt8},
    {TF_UINT16, DataType::kUint16},
    {TF_INT16, DataType::kInt16},
    {TF_UINT32, DataType::kUint32},
    {TF_INT32, DataType::kInt32},
    {TF_UINT64, DataType::kUint64},
    {TF_INT64, DataType::kInt64},
    {TF_HALF, DataType::kFloat16},
    {TF_BFLOAT16, DataType::kBfloat16},
    {TF_FLOAT, DataType::kFloat32},
    {TF_DOUBLE, DataType::kFloat64},
    {TF_FLOAT8_E4M3FN, DataType::kFloat8E4m3fn},
    {TF_FLOAT8_E5M2, DataType::kFloat8E5m2},
};

// The memory of a string element (TF_TString of ctstring_internal.h, little
// endian). TensorFlow reads it with inline functions only, so its layout is
// part of the C interface. The low two bits of the first byte say which member
// holds the characters; all sizes are stored times four.
union TString {
  enum Kind : uint8_t { kSmall = 0, kLarge = 1, kOffset = 2, kView = 3 };
  struct {
    uint8_t size;
    char characters[23];
  } small;
  struct {
    size_t size;
    size_t capacity;
    char* characters;
  } large;
  struct {
    uint32_t size;
    uint32_t offset;  // from the start of this object
  } offset;
  struct {
    size_t size;
    const char* characters;
  } view;
};
static_assert(sizeof(TString) == 24, "TF_TString has 24 bytes");

std::string_view View(const TString& text) {
  switch (text.small.size & 3) {
    case TString::kSmall:
      return std::string_view(text.small.characters, text.small.size >> 2);
    case TString::kLarge:
      return std::string_view(text.large.characters, text.large.size >> 2);
    case TString::kOffset:
      return std::string_view(
          reinterpret_cast<const char*>(&text) + text.offset.offset,
          text.offset.size >> 2);
    default:
      return std::string_view(text.view.characters, text.view.size >> 2);
  }
}

}  // namespace

void SetTfStatus(const Status& status, TF_Status* tf_status) {
  TF_SetStatus(tf_status, TfCode(status.code()), status.message().c_str());
  if (status.ok()) return;
  TF_SetPayload(tf_status, kErrorPayloadKey, StatusCodeName(status.code()));
}

Status FromTfStatus(const TF_Status* tf_status) {
  switch (TF_GetCode(tf_status)) {
    case TF_OK:
      return Status::Ok();
    case TF_INVALID_ARGUMENT:
      return Status::InvalidArgument(TF_Message(tf_status));
    default:
      return Status::Internal(TF_Message(tf_status));
  }
}

Status FromTfDataType(TF_DataType tf_dtype, DataType* dtype) {
  for (const TypePair& pair : kTypePairs) {
    if (pair.tf_dtype != tf_dtype) continue;
    *dtype = pair.dtype;
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "The tensor must be of type bool, (u)int8 to (u)int64, float16, "
      "bfloat16, float32, float64, float8_e4m3fn or float8_e5m2. Received: "
      "TensorFlow's type number " +
      std::to_string(tf_dtype) + ".");
}

TF_DataType ToTfDataType(DataType dtype) {
  for (const TypePair& pair : kTypePairs) {
    if (pair.dtype == dtype) return pair.tf_dtype;
  }
  return TF_FLOAT;
}

Status ReadStringScalar(const TF_Tensor* tensor, std::string* value) {
  if (TF_TensorType(tensor) != TF_STRING ||
      TF_TensorByteSize(tensor) < sizeof(TString)) {
    return Status::InvalidArgument(
        "`tensor_name` must be a string tensor with one element.");
  }
  *value = StringAt(tensor, 0);
  return Status::Ok();
}

std::string_view StringAt(const TF_Tensor* tensor, size_t index) {
  return View(static_cast<const TString*>(TF_TensorData(tensor))[index]);
}

char* MakeStringAt(TF_Tensor* tensor, size_t index, size_t size) {
  TString& text = static_cast<TString*>(TF_TensorData(tensor))[index];
  if (size < sizeof(text.small.characters)) {
    text.small.size = static_cast<uint8_t>(size << 2 | TString::kSmall);
    text.small.characters[size] = 0;
    return text.small.characters;
  }
  // TensorFlow frees it.
  char* const characters = static_cast<char*>(std::malloc(size + 1));
  if (characters == nullptr) throw std::bad_alloc();
  characters[size] = 0;
  text.large.size = size << 2 | TString::kLarge;
  text.large.capacity = size;
  text.large.characters = characters;
  return characters;
}

}  // namespace hvd
