// Sees whether all ranks bring the same values to their sums and averages, as
// they do when each trains on the same rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tf_ops/negotiation/request.h"

namespace hvd {

// Keeps a few values of what this rank brings to an allreduce of all ranks, and
// looks whether the result is what it would be if all had brought the same. No
// rank asks another one. It stops at the first result that is not. Not
// thread-safe.
class SameInputs {
 public:
  explicit SameInputs(int size) : size_(size) {}

  void Begin(const Request& request);
  void End(const Request& request, bool is_ok);

  // How many results were so; 0 if one was not, or could not be looked at.
  uint64_t num() const { return has_other_ ? 0 : num_; }

 private:
  struct Value {
    size_t tensor = 0;
    size_t index = 0;
    double expected = 0.0;
  };

  const int size_;
  uint64_t num_ = 0;
  bool has_other_ = false;
  std::unordered_map<uint64_t, std::vector<Value>> running_;  // by number
};

}  // namespace hvd
