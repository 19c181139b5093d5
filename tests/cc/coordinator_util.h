// Times and messages of ranks, for tests of the coordinator alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {

inline const Clock::time_point kStart{std::chrono::seconds(1000)};

inline Clock::time_point After(double seconds) {
  return kStart +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

inline RankMessage ACall(const std::string& name, Shape shape = {2}) {
  RankMessage message;
  message.name = name;
  message.params.tensors = {{DataType::kFloat32, std::move(shape)}};
  return message;
}

// A set of global ranks 3, 5 and 8, which messages name.
inline CoordinatorOptions SetOptions() {
  CoordinatorOptions options;
  options.global_ranks = {3, 5, 8};
  return options;
}

}  // namespace hvd
