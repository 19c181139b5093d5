// HorovodRank, HorovodSize, HorovodLocalRank, HorovodLocalSize and
// HorovodProcessSetIncluded: who this process is. They look when they run, so
// that a graph stays right after another init().
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tf_ops/kernels/op_attributes.h"
#include "tf_ops/kernels/op_call.h"
#include "tf_ops/kernels/op_registration.h"
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

template <Query query, bool has_process_set>
class QueryKernel {
 public:
  static Status Create(const OpAttributes& attributes,
                       std::unique_ptr<QueryKernel>* kernel) {
    *kernel = std::make_unique<QueryKernel>();
    if (!has_process_set) return Status::Ok();
    return attributes.Int("process_set_id", &(*kernel)->process_set_id_);
  }

  Status Compute(TF_OpKernelContext* context) const {
    int32_t value = 0;
    HVD_RETURN_IF_ERROR(query(process_set_id_, &value));
    return OpCall(context, nullptr, DeviceKind::kCpu)
        .WriteOutput(0, Shape{}, &value);
  }

 private:
  int32_t process_set_id_ = 0;
};

template <Query query, bool has_process_set>
void RegisterQuery(const char* name) {
  OpDefinition op;
  op.name = name;
  op.outputs = {"value: int32"};
  if (has_process_set) op.attributes = {"process_set_id: int = 0"};
  op.shape_function = InferScalar;
  RegisterSynchronousOp<QueryKernel<query, has_process_set>>(op);
}

[[maybe_unused]] const bool topology_registered = [] {
  RegisterQuery<Rank, false>("HorovodRank");
  RegisterQuery<Size, true>("HorovodSize");
  RegisterQuery<LocalRank, false>("HorovodLocalRank");
  RegisterQuery<LocalSize, false>("HorovodLocalSize");
  RegisterQuery<ProcessSetIncluded, true>("HorovodProcessSetIncluded");
  return true;
}();

}  // namespace
}  // namespace hvd
