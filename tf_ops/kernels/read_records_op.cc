// HorovodReadRecords: reads records of TFRecord files by their numbers.
// HorovodFindRecords: tells the numbers of a file's records.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/records/record_source.h"

namespace hvd {
namespace {

// Allocates output `index`, in the shape of the input.
Status Output(TF_OpKernelContext* context, const TF_Tensor* input, int index,
              TF_DataType type, size_t value_bytes, TfTensor* output) {
  std::vector<int64_t> dims(TF_NumDims(input));
  size_t num_bytes = value_bytes;
  for (size_t i = 0; i < dims.size(); ++i) {
    dims[i] = TF_Dim(input, static_cast<int>(i));
    num_bytes *= dims[i];
  }
  TfStatus status = NewTfStatus();
  output->reset(TF_AllocateOutput(context, index, type, dims.data(),
                                  static_cast<int>(dims.size()), num_bytes,
                                  status.get()));
  return FromTfStatus(status.get());
}

int64_t NumValues(const TF_Tensor* tensor) {
  int64_t count = 1;
  for (int i = 0; i < TF_NumDims(tensor); ++i) count *= TF_Dim(tensor, i);
  return count;
}

Status ReadRecords(RecordSource* source, TF_OpKernelContext* context) {
  TfTensor numbers, records;
  HVD_RETURN_IF_ERROR(GetInput(context, 0, &numbers));
  constexpr size_t kStringBytes = 24;
  HVD_RETURN_IF_ERROR(
      Output(context, numbers.get(), 0, TF_STRING, kStringBytes, &records));
  const int64_t count = NumValues(numbers.get());
  const char* next = static_cast<const char*>(TF_TensorData(numbers.get()));
  std::vector<int64_t> all(count);
  if (count > 0) std::memcpy(all.data(), next, count * sizeof(int64_t));
  // Whether records follow on each other.
  const bool is_run =
      count > 1 && std::adjacent_find(all.begin(), all.end(),
                                      [](int64_t one, int64_t other) {
                                        return other != one + 1;
                                      }) == all.end();
  std::vector<RecordSource::Record> found(count);
  for (int64_t i = 0; i < count; ++i) {
    RecordSource::Record& record = found[i];
    HVD_RETURN_IF_ERROR(source->Locate(all[i], &record));
    // Its disk may then read several at once.
    if (count > 1) {
      record.file->Prefetch(record.place, record.data_bytes, is_run);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const RecordSource::Record& record = found[i];
    HVD_RETURN_IF_ERROR(
        record.file->Read(record.place, record.data_bytes, is_run,
                          MakeStringAt(records.get(), i, record.data_bytes)));
  }
  return Status::Ok();
}

Status FindRecords(RecordSource* source, TF_OpKernelContext* context) {
  TfTensor path;
  HVD_RETURN_IF_ERROR(GetInput(context, 0, &path));
  int64_t values[2];
  HVD_RETURN_IF_ERROR(
      source->Find(StringAt(path.get(), 0), &values[0], &values[1]));
  for (int i = 0; i < 2; ++i) {
    TfTensor output;
    HVD_RETURN_IF_ERROR(
        Output(context, path.get(), i, TF_INT64, sizeof(values[i]), &output));
    std::memcpy(TF_TensorData(output.get()), &values[i], sizeof(values[i]));
  }
  return Status::Ok();
}

template <Status (*run)(RecordSource*, TF_OpKernelContext*)>
class RecordsKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<RecordsKernel>* kernel) {
    *kernel = std::make_unique<RecordsKernel>();
    return attributes.Int("source", &(*kernel)->source_);
  }

  Status Compute(TF_OpKernelContext* context) const {
    const std::shared_ptr<RecordSource> source = FindRecordSource(source_);
    if (source == nullptr) {
      return Status::InvalidArgument("The dataset of these records is gone.");
    }
    return run(source.get(), context);
  }

 private:
  int32_t source_ = 0;
};

// A shape function: each output has the shape of the input.
template <int num_outputs>
void InferShapesOfInput(TF_ShapeInferenceContext* context, TF_Status* status) {
  const TfShape shape = NewTfShape();
  TF_ShapeInferenceContextGetInput(context, 0, shape.get(), status);
  for (int i = 0; i < num_outputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

[[maybe_unused]] const bool read_records_registered = [] {
  OpDefinition op;
  op.attributes = {"source: int"};
  op.name = "HorovodReadRecords";
  op.inputs = {"numbers: int64"};
  op.outputs = {"records: string"};
  op.shape_function = InferShapesOfInput<1>;
  RegisterSynchronousOp<RecordsKernel<ReadRecords>>(op);
  op.name = "HorovodFindRecords";
  op.inputs = {"path: string"};
  op.outputs = {"first: int64", "count: int64"};
  op.shape_function = InferShapesOfInput<2>;
  RegisterSynchronousOp<RecordsKernel<FindRecords>>(op);
  return true;
}();

}  // namespace
}  // namespace hvd
