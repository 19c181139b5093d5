#include "tf_ops/negotiation/fusion_plan.h"

namespace hvd {
namespace {

bool HasOneDataType(const RequestParams& p) {
  if (p.tensors.empty()) return false;
  for (const TensorParams& t : p.tensors) {
    if (t.dtype != p.tensors[0].dtype) return false;
  }
  return true;
}

bool MayFuse(const RequestParams& p) {
  switch (p.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kBroadcast:
      return HasOneDataType(p);
    case CollectiveKind::kAllgather:
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return false;
  }
  return false;
}

bool AreAlike(const RequestParams& a, const RequestParams& b) {
  return a.kind == b.kind && a.device == b.device && a.op == b.op &&
         a.root_rank == b.root_rank && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.wire_format == b.wire_format &&
         a.tensors[0].dtype == b.tensors[0].dtype;
}

}  // namespace

void FusionPlan::Add(ResponseItem item,
                     std::shared_ptr<const RequestParams> params,
                     int32_t divisor) {
  const int64_t num_bytes = params->num_bytes();
  const bool may_fuse = MayFuse(*params) && num_bytes < threshold_bytes_;
  if (may_fuse) {
    for (Group& group : groups_) {
      if (!group.open || group.execution.divisor != divisor) continue;
      if (!AreAlike(*group.like, *params)) continue;
      if (group.num_bytes + num_bytes > threshold_bytes_) continue;
      group.num_bytes += num_bytes;
      group.execution.items.push_back(std::move(item));
      return;
    }
  }
  groups_.emplace_back();
  Group& group = groups_.back();
  group.like = std::move(params);
  group.num_bytes = num_bytes;
  group.open = may_fuse;
  group.execution.divisor = divisor;
  group.execution.items.push_back(std::move(item));
}

std::vector<Execution> FusionPlan::Take() {
  std::vector<Execution> runs;
  runs.reserve(groups_.size());
  for (Group& group : groups_) runs.push_back(std::move(group.execution));
  groups_.clear();
  return runs;
}

}  // namespace hvd
