// What tells that all ranks bring the same values.
#include "tf_ops/observe/same_inputs.h"

#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/collectives/half.h"

namespace hvd {
namespace {

// One allreduce of a rank's values.
class Sum {
 public:
  explicit Sum(ReduceOp op)
      : request_(ARequest(CollectiveKind::kAllreduce, "gradient", op)) {}

  template <typename T>
  void Run(SameInputs* same, DataType dtype, std::vector<T> values,
           std::vector<T> result, bool is_ok = true) {
    RequestTensor tensor;
    tensor.dtype = dtype;
    tensor.shape = {static_cast<int64_t>(values.size())};
    tensor.input = tensor.output = values.data();  // in place
    request_.tensors = {tensor};
    ++request_.number;
    same->Begin(request_);
    values = result;
    request_.tensors[0].output = values.data();
    same->End(request_, is_ok);
  }

  Request request_;
};

using Floats = std::vector<float>;
constexpr DataType kFloat32 = DataType::kFloat32;

TEST_CASE("an average of equal values is what each rank has brought") {
  SameInputs same(3);
  Sum sum(ReduceOp::kAverage);
  sum.Run<float>(&same, kFloat32, {1, 2, -3, 4}, {1, 2, -3, 4.00001f});
  sum.request_.postscale = 0.5;
  sum.Run<float>(&same, kFloat32, {1, 2, -3, 4}, {0.5f, 1, -1.5f, 2});
  CHECK(same.num() == 2);
  sum.Run<float>(&same, kFloat32, {1, 2, -3, 4}, {0.5f, 1, -1.5f, 2.1f});
  CHECK(same.num() == 0);
  sum.Run<float>(&same, kFloat32, {1, 2, -3, 4}, {0.5f, 1, -1.5f, 2});
  CHECK(same.num() == 0);
}

TEST_CASE("a sum of equal values is as many times as large") {
  SameInputs same(3);
  Sum sum(ReduceOp::kSum);
  sum.Run<float>(&same, kFloat32, {1, 2, -3, 4}, {3, 6, -9, 12});
  sum.Run<double>(&same, DataType::kFloat64, {1, 2, 3, 4}, {3, 6, 9, 12});
  const auto half = [](float value) { return ToFloat16(value); };
  sum.Run<uint16_t>(&same, DataType::kFloat16,
                    {half(1), half(2), half(3), half(4)},
                    {half(3), half(6), half(9), half(12)});
  CHECK(same.num() == 3);
  sum.Run<uint16_t>(&same, DataType::kBfloat16,
                    {ToBfloat16(1), ToBfloat16(2), ToBfloat16(3)},
                    {ToBfloat16(3), ToBfloat16(6), ToBfloat16(10)});
  CHECK(same.num() == 0);
}

TEST_CASE("zeros, few values and failed calls say nothing") {
  SameInputs same(2);
  Sum sum(ReduceOp::kSum);
  sum.Run<float>(&same, kFloat32, Floats(9), Floats(9));
  sum.Run<float>(&same, kFloat32, {1}, {2});
  sum.Run<float>(&same, kFloat32, {1, 1, 1, 1}, {9, 9, 9, 9}, false);
  sum.Run<int32_t>(&same, DataType::kInt32, {1, 1, 1, 1}, {9, 9, 9, 9});
  CHECK(same.num() == 0);
  sum.Run<float>(&same, kFloat32, {1, 1, 1, 1}, {2, 2, 2, 2});
  CHECK(same.num() == 1);
}

TEST_CASE("what cannot be looked at may differ") {
  SameInputs same(2);
  Sum sum(ReduceOp::kSum);
  sum.Run<float>(&same, kFloat32, {1, 1, 1, 1}, {2, 2, 2, 2});
  sum.request_.process_set_id = 1;  // says nothing
  sum.Run<float>(&same, kFloat32, {1, 1, 1, 1}, {3, 3, 3, 3});
  CHECK(same.num() == 1);
  sum.request_.process_set_id = 0;
  sum.request_.wire_format = WireFormat::kInt8;
  sum.Run<float>(&same, kFloat32, {1, 1, 1, 1}, {2, 2, 2, 2});
  CHECK(same.num() == 0);
}

}  // namespace
}  // namespace hvd
