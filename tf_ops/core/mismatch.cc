#include "tf_ops/core/mismatch.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

namespace hvd {
namespace {

using ByRank = std::vector<std::shared_ptr<const RequestParams>>;
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

// Ranks of each value, the values in the order of the first rank that has it.
using Groups = std::vector<std::pair<std::string, std::vector<int>>>;

Groups GroupRanks(const ByRank& by_rank, const Describe& describe) {
  Groups groups;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string value = describe(*by_rank[rank]);
    size_t i = 0;
    while (i < groups.size() && groups[i].first != value) ++i;
    if (i == groups.size()) groups.emplace_back(value, std::vector<int>());
    groups[i].second.push_back(static_cast<int>(rank));
  }
  return groups;
}

Status CheckOne(const ByRank& by_rank, const std::string& what,
                const Describe& describe) {
  const Groups groups = GroupRanks(by_rank, describe);
  if (groups.size() < 2) return Status::Ok();
  std::string text = "ranks disagree on " + what + ": ";
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0) text += "; ";
    text += groups[i].first + " on " + RanksToString(groups[i].second);
  }
  return Status::Mismatch(text);
}

// The part of the shape that ranks must share.
std::string CommonShape(const RequestParams& p, size_t i) {
  if (p.kind != CollectiveKind::kAllgather || p.tensors[i].shape.empty()) {
    return ShapeToString(p.tensors[i].shape);
  }
  std::string text = ShapeToString(p.tensors[i].shape);
  const size_t comma = text.find(',');
  return comma == std::string::npos ? "[*]" : "[*" + text.substr(comma);
}

Status CheckTensors(const ByRank& by_rank) {
  const size_t num_tensors = by_rank[0]->tensors.size();
  for (size_t i = 0; i < num_tensors; ++i) {
    const std::string which =
        num_tensors == 1 ? "" : " of tensor " + std::to_string(i);
    HVD_RETURN_IF_ERROR(
        CheckOne(by_rank, "the dtype" + which, [i](const RequestParams& p) {
          return std::string(DataTypeName(p.tensors[i].dtype));
        }));
    HVD_RETURN_IF_ERROR(
        CheckOne(by_rank, "the shape" + which,
                 [i](const RequestParams& p) { return CommonShape(p, i); }));
  }
  return Status::Ok();
}

bool AllEqual(const ByRank& by_rank) {
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank[0]) continue;
    if (!(*by_rank[rank] == *by_rank[0])) return false;
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

Status CheckAgreement(const ByRank& by_rank) {
  if (AllEqual(by_rank)) return Status::Ok();
  HVD_RETURN_IF_ERROR(
      CheckOne(by_rank, "the collective", [](const RequestParams& p) {
        return std::string(CollectiveKindName(p.kind));
      }));
  HVD_RETURN_IF_ERROR(
      CheckOne(by_rank, "the process set", [](const RequestParams& p) {
        return "process set " + std::to_string(p.process_set_id);
      }));
  HVD_RETURN_IF_ERROR(
      CheckOne(by_rank, "the number of tensors", [](const RequestParams& p) {
        return std::to_string(p.tensors.size()) +
               (p.tensors.size() == 1 ? " tensor" : " tensors");
      }));
  HVD_RETURN_IF_ERROR(CheckTensors(by_rank));
  HVD_RETURN_IF_ERROR(CheckOne(
      by_rank, "the reduce op",
      [](const RequestParams& p) { return std::string(ReduceOpName(p.op)); }));
  HVD_RETURN_IF_ERROR(
      CheckOne(by_rank, "the root rank", [](const RequestParams& p) {
        return "root_rank=" + std::to_string(p.root_rank);
      }));
  HVD_RETURN_IF_ERROR(CheckOne(
      by_rank, "the prescale factor",
      [](const RequestParams& p) { return DoubleToString(p.prescale); }));
  HVD_RETURN_IF_ERROR(CheckOne(
      by_rank, "the postscale factor",
      [](const RequestParams& p) { return DoubleToString(p.postscale); }));
  return CheckOne(by_rank, "averaging", [](const RequestParams& p) {
    return std::string(p.average ? "average=true" : "average=false");
  });
}

}  // namespace hvd
