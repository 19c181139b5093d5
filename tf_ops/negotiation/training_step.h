// Where ranks are in their training when they make a call.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

// The upper half: which `fit` of the process. The lower one: twice the step,
// which counts from 1 on, and one more between this step and the next. 0: not
// known, which agrees with all.
using TrainingStep = uint64_t;

// Ranks may have made other numbers of calls of `fit`, each in a process set.
inline bool AgreeOnStep(TrainingStep a, TrainingStep b) {
  return a == 0 || b == 0 ||
         static_cast<uint32_t>(a) == static_cast<uint32_t>(b);
}

// Whether a rank that is in `later` has ended what it did in `earlier`. False
// if that is not known.
inline bool IsLater(TrainingStep later, TrainingStep earlier) {
  return earlier != 0 && later > earlier && later >> 32 == earlier >> 32;
}

inline std::string ToString(TrainingStep step) {
  const uint32_t number = static_cast<uint32_t>(step);
  return (number % 2 == 0 ? "step " : "after step ") +
         std::to_string(number / 2);
}

// The steps in which ranks have come for a call.
class StepsOfRanks {
 public:
  void Add(TrainingStep step, const std::vector<int>& ranks) {
    if (!std::exchange(has_any_, true)) first_ = step;
    if (step == first_) return;
    for (int rank : ranks) others_.emplace_back(rank, step);
  }
  // Of a rank that has come.
  TrainingStep of(int rank) const {
    for (const auto& [other, step] : others_) {
      if (other == rank) return step;
    }
    return first_;
  }
  bool agree() const {
    TrainingStep known = first_;
    for (const auto& [rank, step] : others_) {
      if (!AgreeOnStep(known, step)) return false;
      if (known == 0) known = step;
    }
    return true;
  }
  void Clear() {
    has_any_ = false;
    first_ = 0;
    others_.clear();
  }

 private:
  bool has_any_ = false;
  TrainingStep first_ = 0;
  std::vector<std::pair<int, TrainingStep>> others_;  // by rank
};

// Whether a call reduces gradients, so that the ranks' steps must be equal:
// hvd_keras/_gradients/reducer.py names it. Other calls may be made at any
// time, such as those of a thread that saves.
inline bool ReducesGradients(const std::string& name) {
  return name.find("/bucket_") != std::string::npos;
}

}  // namespace hvd
