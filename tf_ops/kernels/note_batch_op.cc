// HorovodNoteBatch: notes a checksum of a batch, and its first values.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tf_ops/collectives/half.h"
#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/observe/batch_notes.h"

namespace hvd {
namespace {

constexpr int64_t kMostValuesOfRow = 8;  // that a checksum reads
constexpr int64_t kMostValuesOfVector = 1 << 14;
constexpr int kNumTensors = 3, kNumRows = 3;  // that a note shows

class Batch {
 public:
  explicit Batch(TfTensor tensor)
      : tensor_(std::move(tensor)), type_(TF_TensorType(tensor_.get())) {
    const int num_dims = TF_NumDims(tensor_.get());
    is_vector_ = num_dims < 2;
    for (int i = 0; i < num_dims; ++i) {
      (i == 0 ? num_rows_ : width_) *= TF_Dim(tensor_.get(), i);
    }
    const int64_t size = num_rows_ * width_;
    has_values_ = size > 0 && type_ != TF_RESOURCE && type_ != TF_VARIANT;
    if (has_values_) {
      data_ = static_cast<const char*>(TF_TensorData(tensor_.get()));
      value_bytes_ = TF_TensorByteSize(tensor_.get()) / size;
    }
  }

  // Mixes a sample of the values into `checksum`.
  uint64_t Checksum(uint64_t checksum) const {
    checksum = Mixed(checksum, static_cast<uint64_t>(num_rows_));
    checksum = Mixed(checksum, static_cast<uint64_t>(width_));
    if (!has_values_) return checksum;
    if (is_vector_) {
      const int64_t stride = 1 + num_rows_ / kMostValuesOfVector;
      for (int64_t i = 0; i < num_rows_; i += stride) {
        checksum = WithValue(checksum, i);
      }
      return checksum;
    }
    const int64_t stride =
        width_ <= kMostValuesOfRow ? 1 : 1 + width_ / kMostValuesOfRow;
    for (int64_t row = 0; row < num_rows_; ++row) {
      for (int64_t i = 0; i < width_; i += stride) {
        checksum = WithValue(checksum, row * width_ + i);
      }
    }
    return checksum;
  }

  // Appends the first value of each of the first rows.
  void AppendWords(std::string* words) const {
    if (!has_values_) return;
    for (int64_t row = 0; row < std::min<int64_t>(num_rows_, kNumRows); ++row) {
      if (row > 0) *words += ", ";
      AppendValue(row * width_, words);
    }
  }

 private:
  // As in the finalizer of MurmurHash3, https://github.com/aappleby/smhasher.
  static uint64_t Mixed(uint64_t checksum, uint64_t value) {
    checksum = (checksum ^ value) * 0xff51afd7ed558ccdu;
    return checksum ^ (checksum >> 33);
  }

  static uint64_t WithBytes(uint64_t checksum, const char* bytes, size_t size) {
    for (; size > sizeof(uint64_t); size -= sizeof(uint64_t)) {
      uint64_t value;
      std::memcpy(&value, bytes, sizeof(value));
      checksum = Mixed(checksum, value);
      bytes += sizeof(value);
    }
    uint64_t value = 0;
    std::memcpy(&value, bytes, size);
    return Mixed(checksum, value);
  }

  uint64_t WithValue(uint64_t checksum, int64_t index) const {
    if (type_ == TF_STRING) {
      const std::string_view text = StringAt(tensor_.get(), index);
      checksum = Mixed(checksum, text.size());
      return WithBytes(checksum, text.data(), text.size());
    }
    return WithBytes(checksum, data_ + index * value_bytes_, value_bytes_);
  }

  template <typename T>
  T At(int64_t index) const {
    T value;
    std::memcpy(&value, data_ + index * sizeof(T), sizeof(T));
    return value;
  }

  void AppendValue(int64_t index, std::string* words) const {
    switch (type_) {
      case TF_FLOAT:
        return AppendFloat(At<float>(index), words);
      case TF_DOUBLE:
        return AppendFloat(At<double>(index), words);
      case TF_HALF:
        return AppendFloat(FromFloat16(At<uint16_t>(index)), words);
      case TF_BFLOAT16:
        return AppendFloat(FromBfloat16(At<uint16_t>(index)), words);
      case TF_BOOL:
        *words += At<bool>(index) ? "true" : "false";
        return;
      case TF_INT8:
        *words += std::to_string(At<int8_t>(index));
        return;
      case TF_UINT8:
        *words += std::to_string(At<uint8_t>(index));
        return;
      case TF_INT16:
        *words += std::to_string(At<int16_t>(index));
        return;
      case TF_UINT16:
        *words += std::to_string(At<uint16_t>(index));
        return;
      case TF_INT32:
        *words += std::to_string(At<int32_t>(index));
        return;
      case TF_UINT32:
        *words += std::to_string(At<uint32_t>(index));
        return;
      case TF_INT64:
        *words += std::to_string(At<int64_t>(index));
        return;
      case TF_UINT64:
        *words += std::to_string(At<uint64_t>(index));
        return;
      case TF_STRING:
        *words += StringAt(tensor_.get(), index);
        return;
      default:
        *words += '?';
    }
  }

  static void AppendFloat(double value, std::string* words) {
    char text[32];
    const int size = std::snprintf(text, sizeof(text), "%.4g", value);
    words->append(text, size);
  }

  TfTensor tensor_;
  TF_DataType type_;
  bool is_vector_ = false, has_values_ = false;
  int64_t num_rows_ = 1, width_ = 1;  // a scalar is one row
  const char* data_ = nullptr;
  size_t value_bytes_ = 0;
};

class NoteBatchKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<NoteBatchKernel>* kernel) {
    *kernel = std::make_unique<NoteBatchKernel>();
    HVD_RETURN_IF_ERROR(attributes.Int("pipeline", &(*kernel)->pipeline_));
    return attributes.Int("num_shown", &(*kernel)->num_shown_);
  }

  Status Compute(TF_OpKernelContext* context) const {
    TfTensor iteration;
    HVD_RETURN_IF_ERROR(GetInput(context, 0, &iteration));
    BatchNote note;
    std::memcpy(&note.iteration, TF_TensorData(iteration.get()),
                sizeof(note.iteration));
    if (note.iteration < 0) return Status::Ok();  // nobody asks
    uint64_t checksum = 0;
    std::string words;
    for (int i = 1; i < TF_NumInputs(context); ++i) {
      TfTensor input;
      HVD_RETURN_IF_ERROR(GetInput(context, i, &input));
      const Batch batch(std::move(input));
      checksum = batch.Checksum(checksum);
      if (i > std::min(num_shown_, kNumTensors)) continue;
      words += i > 1 ? "; " : " ";
      batch.AppendWords(&words);
    }
    note.text = std::to_string(checksum) + words;
    AddBatchNote(pipeline_, std::move(note));
    return Status::Ok();
  }

 private:
  int32_t pipeline_ = 0;
  int32_t num_shown_ = 0;  // tensors that a note may show: the first
};

[[maybe_unused]] const bool note_batch_registered = [] {
  OpDefinition op;
  op.name = "HorovodNoteBatch";
  op.inputs = {"iteration: int64", "tensors: T"};
  op.attributes = {"T: list(type)", "pipeline: int", "num_shown: int"};
  op.shape_function = [](TF_ShapeInferenceContext*, TF_Status*) {};
  RegisterSynchronousOp<NoteBatchKernel>(op);
  return true;
}();

}  // namespace
}  // namespace hvd
