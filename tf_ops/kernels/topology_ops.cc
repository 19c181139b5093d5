// HorovodRank, HorovodSize, HorovodLocalRank, HorovodLocalSize and
// HorovodProcessSetIncluded: who this process is. They look when they run, so
// that a graph stays right after another init().
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_registration.h"
#include "tf_ops/kernels/tf_convert.h"
#include "tf_ops/kernels/tf_handles.h"
#include "tf_ops/process/global_engine.h"
#include "tf_ops/process/local_topology.h"

namespace hvd {
namespace {

using Query = Status (*)(int32_t process_set_id, int32_t* value);

Status OwnRank(int32_t* rank) {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine == nullptr) {
    return Status::NotInitialized("call hvd.init() first");
  }
  *rank = engine->rank();
  return Status::Ok();
}

Status Rank(int32_t, int32_t* value) { return OwnRank(value); }

Status Size(int32_t process_set_id, int32_t* value) {
  std::vector<int> ranks;
  HVD_RETURN_IF_ERROR(ProcessSetRanks(process_set_id, &ranks));
  *value = static_cast<int32_t>(ranks.size());
  return Status::Ok();
}

Status LocalRank(int32_t, int32_t* value) {
  HVD_RETURN_IF_ERROR(OwnRank(value));  // an error without init()
  *value = GetLocalTopology().rank;
  return Status::Ok();
}

Status LocalSize(int32_t, int32_t* value) {
  HVD_RETURN_IF_ERROR(OwnRank(value));
  *value = GetLocalTopology().size;
  return Status::Ok();
}

Status ProcessSetIncluded(int32_t process_set_id, int32_t* value) {
  std::vector<int> ranks;
  HVD_RETURN_IF_ERROR(ProcessSetRanks(process_set_id, &ranks));
  int32_t rank = 0;
  HVD_RETURN_IF_ERROR(OwnRank(&rank));
  *value = std::count(ranks.begin(), ranks.end(), rank) > 0 ? 1 : 0;
  return Status::Ok();
}

// The state of a node; unused where the op has no process set.
struct Node {
  int32_t process_set_id = 0;
};

template <bool has_process_set>
void* Create(TF_OpKernelConstruction* construction) {
  auto node = std::make_unique<Node>();
  if (has_process_set) {
    const Status status =
        OpAttributes(construction).Int("process_set_id", &node->process_set_id);
    if (!status.ok()) FailConstruction(construction, status);
  }
  return node.release();
}

template <Query query>
void Compute(void* kernel, TF_OpKernelContext* context) {
  int32_t value = 0;
  TfStatus tf_status = NewTfStatus();
  const Status status =
      query(static_cast<Node*>(kernel)->process_set_id, &value);
  if (!status.ok()) {
    SetTfStatus(status, tf_status.get());
    TF_OpKernelContext_Failure(context, tf_status.get());
    return;
  }
  const TfTensor output(TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0,
                                          sizeof(value), tf_status.get()));
  if (TF_GetCode(tf_status.get()) != TF_OK) {
    TF_OpKernelContext_Failure(context, tf_status.get());
    return;
  }
  *static_cast<int32_t*>(TF_TensorData(output.get())) = value;
}

void Destroy(void* kernel) { delete static_cast<Node*>(kernel); }

template <Query query, bool has_process_set>
void RegisterQuery(const char* name) {
  OpDefinition op;
  op.name = name;
  op.outputs = {"value: int32"};
  if (has_process_set) op.attributes = {"process_set_id: int = 0"};
  op.shape_function = InferScalar;
  RegisterDefinition(op);
  RegisterKernel(name,
                 TF_NewKernelBuilder(name, "CPU", &Create<has_process_set>,
                                     &Compute<query>, &Destroy));
}

[[maybe_unused]] const bool registered = [] {
  RegisterQuery<Rank, false>("HorovodRank");
  RegisterQuery<Size, true>("HorovodSize");
  RegisterQuery<LocalRank, false>("HorovodLocalRank");
  RegisterQuery<LocalSize, false>("HorovodLocalSize");
  RegisterQuery<ProcessSetIncluded, true>("HorovodProcessSetIncluded");
  return true;
}();

}  // namespace
}  // namespace hvd
