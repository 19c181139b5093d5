// HorovodGroupedAllreduceStart and HorovodGroupedAllreduceEnd: a grouped
// allreduce in two ops.
//
// TensorFlow lets an asynchronous kernel wait for a thread of its own. Where it
// has one thread between ops, that is the end of the step. The first op is
// synchronous, so what depends on it runs after the request was submitted. The
// second one waits for the sums.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/kernels/early_calls.h"
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/reduction_kernel.h"
#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/process/global_engine.h"

namespace hvd {
namespace {

// Fills in the tensors of `request`, and what holds their memory.
Status Prepare(const OpCall& call, Request* request,
               std::vector<TfTensor>* held) {
  request->tensors.resize(call.num_tensors());
  for (size_t i = 0; i < request->tensors.size(); ++i) {
    RequestTensor* const tensor = &request->tensors[i];
    HVD_RETURN_IF_ERROR(call.ReadInput(i, tensor));
    held->emplace_back();
    HVD_RETURN_IF_ERROR(call.ForwardOutput(i, tensor, &held->back()));
    if (tensor->output == tensor->input) continue;
    held->emplace_back();
    HVD_RETURN_IF_ERROR(call.HoldInput(i, &held->back()));
  }
  return Status::Ok();
}

Status Start(const Reduction& reduction, const OpCall& call) {
  Request request = reduction.NewRequest(CollectiveKind::kAllreduce);
  HVD_RETURN_IF_ERROR(
      call.ReadName(reduction.common.iterations_may_overlap, &request.name));
  const std::string key =
      std::to_string(request.process_set_id) + "/" + request.name;
  // A step that failed has started it and not ended it. As with one op, the
  // next step waits until all ranks have come to the former one.
  if (const auto before = EarlyCalls::Get().Find(key)) (void)before->Wait();
  std::vector<TfTensor> held;
  void* number = nullptr;
  request.failure = Prepare(call, &request, &held);
  if (request.failure.ok()) {  // all ranks hear of a rank without memory
    request.failure = call.AllocateOutput(request.tensors.size(),
                                          DataType::kInt64, Shape{}, &number);
  }
  const bool is_whole = request.failure.ok();
  const auto early = std::make_shared<EarlyCall>(std::move(held));
  request.done = [early](const Status& outcome) { early->Finish(outcome); };
  if (is_whole) {
    *static_cast<int64_t*>(number) = EarlyCalls::Get().Add(key, early);
  }
  SubmitGlobal(std::move(request));
  // Without its outputs this op must fail; all ranks then hear why.
  return is_whole ? Status::Ok() : early->Wait();
}

class StartKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<StartKernel>* kernel) {
    *kernel = std::make_unique<StartKernel>();
    return Reduction::Read(attributes, &(*kernel)->reduction_);
  }

  Status Compute(TF_OpKernelContext* context) const {
    return Start(reduction_, OpCall(context, nullptr, DeviceKind::kCpu));
  }

 private:
  Reduction reduction_;
};

class EndKernel {
 public:
  static Status Create(const OpAttributes&,
                       std::unique_ptr<EndKernel>* kernel) {
    *kernel = std::make_unique<EndKernel>();
    return Status::Ok();
  }

  void Compute(const std::shared_ptr<OpCall>& call) const {
    const size_t num_sums =
        call->num_tensors();  // the number is the last input
    int64_t number = 0;
    Status status = call->ReadInteger(num_sums, &number);
    if (!status.ok()) return call->Finish(status);
    const std::shared_ptr<EarlyCall> early = EarlyCalls::Get().Take(number);
    if (early == nullptr) {
      return call->Finish(Status::Internal(
          "allreduce number " + std::to_string(number) + " was not started"));
    }
    for (size_t i = 0; i < num_sums && status.ok(); ++i) {
      status = call->PassOn(i);
    }
    early->Then([call, status](const Status& outcome) {
      call->Finish(outcome.ok() ? status : outcome);
    });
  }
};

void InferShapesOfStart(TF_ShapeInferenceContext* context, TF_Status* status) {
  InferShapesOfInputs(context, status);
  if (TF_GetCode(status) != TF_OK) return;
  const int num_sums =
      static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  const TfShape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, num_sums, scalar.get(), status);
}

[[maybe_unused]] const bool early_allreduce_registered = [] {
  const char* const types = "T: list(" HVD_TENSOR_TYPES ") >= 1";
  OpDefinition op;
  op.name = "HorovodGroupedAllreduceStart";
  op.inputs = {"tensors: T", "tensor_name: string"};
  op.outputs = {"sums: T", "number: int64"};
  op.attributes = Reduction::AttributeSpecs();
  op.attributes.push_back(types);
  AddCommonAttributes(&op);
  op.shape_function = InferShapesOfStart;
  RegisterSynchronousOp<StartKernel>(op);
  OpDefinition end;
  end.name = "HorovodGroupedAllreduceEnd";
  end.inputs = {"sums: T", "number: int64"};
  end.outputs = {"results: T"};
  end.attributes = {types};
  end.shape_function = InferShapesOfInputs;
  RegisterDefinition(end);
  const KernelFunctions functions = KernelFunctionsOf<EndKernel>();
  RegisterKernel(
      end.name, TF_NewAsyncKernelBuilder(end.name, "CPU", functions.create,
                                         functions.compute, functions.destroy));
  return true;
}();

}  // namespace
}  // namespace hvd
