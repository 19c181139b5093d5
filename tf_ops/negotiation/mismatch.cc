#include "tf_ops/negotiation/mismatch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

namespace hvd {
namespace {

using Describe = std::function<std::string(const RequestParams&)>;

// The shortest decimal that reads back as `value`.
std::string DoubleToString(double value) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

// Compares what `describe` returns for each request that is not null.
struct Checker {
  const ParamsByRank& by_rank;
  const std::vector<int>& global_ranks;

  Status Check(const std::string& what, const Describe& describe) const {
    std::vector<ValueOnRank> values;
    bool differ = false;
    for (size_t i = 0; i < by_rank.size(); ++i) {
      if (by_rank[i] == nullptr) continue;
      values.push_back({describe(*by_rank[i]), global_ranks[i]});
      differ = differ || values.back().value != values[0].value;
    }
    return differ ? Disagreement(what, values) : Status::Ok();
  }
};

bool AnyNeedsEqualRows(const ParamsByRank& by_rank) {
  return std::any_of(by_rank.begin(), by_rank.end(), [](const auto& params) {
    return params != nullptr && params->equal_rows;
  });
}

// The part of the shape that ranks must share.
std::string CommonShape(const RequestParams& p, size_t i, bool equal_rows) {
  const bool first_is_free =
      !equal_rows && (p.kind == CollectiveKind::kAllgather ||
                      p.kind == CollectiveKind::kAlltoall);
  if (!first_is_free || p.tensors[i].shape.empty()) {
    return ShapeToString(p.tensors[i].shape);
  }
  std::string text = ShapeToString(p.tensors[i].shape);
  const size_t comma = text.find(',');
  return comma == std::string::npos ? "[*]" : "[*" + text.substr(comma);
}

Status CheckTensors(const Checker& checker, size_t num_tensors) {
  const bool equal_rows = AnyNeedsEqualRows(checker.by_rank);
  for (size_t i = 0; i < num_tensors; ++i) {
    const std::string which =
        num_tensors == 1 ? "" : " of tensor " + std::to_string(i);
    HVD_RETURN_IF_ERROR(
        checker.Check("the dtype" + which, [i](const RequestParams& p) {
          return std::string(DataTypeName(p.tensors[i].dtype));
        }));
    HVD_RETURN_IF_ERROR(checker.Check("the shape" + which,
                                      [i, equal_rows](const RequestParams& p) {
                                        return CommonShape(p, i, equal_rows);
                                      }));
  }
  if (!equal_rows) return Status::Ok();
  return checker.Check("how rows are split", [](const RequestParams& p) {
    return std::string(p.splits.empty() ? "equal parts" : "splits");
  });
}

const RequestParams& Leader(const ParamsByRank& by_rank) {
  size_t i = 0;
  while (by_rank[i] == nullptr) ++i;
  return *by_rank[i];
}

bool AllEqual(const ParamsByRank& by_rank) {
  const RequestParams& leader = Leader(by_rank);
  for (const auto& params : by_rank) {
    if (params == nullptr || params.get() == &leader) continue;
    if (!(*params == leader)) return false;
  }
  return true;
}

}  // namespace

std::string RanksToString(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Status Disagreement(const std::string& what,
                    const std::vector<ValueOnRank>& values) {
  // Each value and its ranks, in order of first appearance.
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const ValueOnRank& one : values) {
    size_t i = 0;
    while (i < groups.size() && groups[i].first != one.value) ++i;
    if (i == groups.size()) groups.emplace_back(one.value, std::vector<int>());
    groups[i].second.push_back(one.rank);
  }
  std::string text = "ranks disagree on " + what + ": ";
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0) text += "; ";
    text += groups[i].first + " on " + RanksToString(groups[i].second);
  }
  return Status::Mismatch(text);
}

Status CheckAgreement(const ParamsByRank& by_rank,
                      const std::vector<int>& global_ranks) {
  if (AllEqual(by_rank)) return Status::Ok();
  const Checker checker{by_rank, global_ranks};
  HVD_RETURN_IF_ERROR(
      checker.Check("the collective", [](const RequestParams& p) {
        return std::string(CollectiveKindName(p.kind));
      }));
  HVD_RETURN_IF_ERROR(checker.Check("the device", [](const RequestParams& p) {
    return std::string(DeviceKindName(p.device));
  }));
  HVD_RETURN_IF_ERROR(
      checker.Check("the number of tensors", [](const RequestParams& p) {
        return std::to_string(p.tensors.size()) +
               (p.tensors.size() == 1 ? " tensor" : " tensors");
      }));
  HVD_RETURN_IF_ERROR(CheckTensors(checker, Leader(by_rank).tensors.size()));
  HVD_RETURN_IF_ERROR(checker.Check(
      "the reduce op",
      [](const RequestParams& p) { return std::string(ReduceOpName(p.op)); }));
  HVD_RETURN_IF_ERROR(
      checker.Check("the root rank", [](const RequestParams& p) {
        return "root_rank=" + std::to_string(p.root_rank);
      }));
  HVD_RETURN_IF_ERROR(checker.Check(
      "the prescale factor",
      [](const RequestParams& p) { return DoubleToString(p.prescale); }));
  HVD_RETURN_IF_ERROR(checker.Check(
      "the postscale factor",
      [](const RequestParams& p) { return DoubleToString(p.postscale); }));
  HVD_RETURN_IF_ERROR(checker.Check(
      "the compression",
      [](const RequestParams& p) { return WireFormatName(p.wire_format); }));
  return checker.Check("averaging", [](const RequestParams& p) {
    return std::string(p.average ? "average=true" : "average=false");
  });
}

std::vector<ValueOnRank> StepsOf(const Call& call,
                                 const std::vector<int>& global_ranks) {
  std::vector<ValueOnRank> steps;
  for (size_t i = 0; i < global_ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (!call.HasCome(rank)) continue;
    steps.push_back({ToString(call.steps.of(rank)), global_ranks[i]});
  }
  return steps;
}

Status UnequalSteps(const std::vector<ValueOnRank>& steps) {
  const Status status =
      Disagreement("the step of training whose gradients they reduce", steps);
  return Status::Mismatch(
      status.message() +
      ". All ranks must update their weights in the same steps, but a rank has "
      "skipped an update, or made one more: for example because only its own "
      "loss was not finite. Let the ranks decide together, by "
      "`hvd.allreduce(..., op=hvd.Min)`, "
      "`hvd.callbacks.ConsistencyCheck(nonfinite=\"skip\")` or Keras's "
      "`LossScaleOptimizer`");
}

}  // namespace hvd
