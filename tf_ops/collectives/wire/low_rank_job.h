// What a host knows of the matrices that travel as thin factors, from call to
// call, and the steps of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "tf_ops/collectives/low_rank.h"
#include "tf_ops/collectives/wire/wire_job.h"
#include "tf_ops/common/status.h"

namespace hvd {

// Each tensor has a residual, what the host has brought and not yet sent, and
// the factors of the last call. All hosts make the same calls, so these
// factors are equal on all of them. They are kept from the second call of a
// name on, and go as those of residuals.h. For one thread.
class LowRankStates {
 public:
  // Adds up `count` floats over the hosts, in their order.
  using SumOverHosts = std::function<Status(float* values, size_t count)>;

  // One after the other: begins a call, adds the bytes of a chunk that this
  // host brings, finds the factors of the sums, and writes the bytes of a chunk
  // of the result. `begin` counts from the first tensor's beginning.
  void Prepare(const WireJob& job);
  void Take(size_t begin, size_t num_bytes, const std::byte* from);
  Status Combine(int num_hosts, const SumOverHosts& sum);
  void Give(size_t begin, size_t num_bytes, std::byte* to);

  size_t num_tensors() const { return by_key_.size(); }  // that have been seen

 private:
  struct State {
    MatrixShape shape;
    uint64_t last_job = 0;
    uint64_t num_calls = 0;
    std::vector<float> residual;  // empty before the second call
    std::vector<float> left;
    std::vector<float> right;
  };
  struct Part {  // of the call's bytes
    State* state;
    uint64_t seed;
    size_t begin;
    size_t end;
    std::vector<float>* sent = nullptr;  // the factor that is added up
    bool is_finite = true;
  };

  // Calls f(part, first element, number of elements, offset of its bytes).
  template <typename F>
  void ForEach(size_t begin, size_t num_bytes, F f);
  static uint64_t SeedOf(const Part& part);
  void MakeLeft(Part* part);
  void MakeRight(Part* part);
  Status SumFactors(const SumOverHosts& sum);
  void Begin(State* state, uint64_t seed) const;

  WireJob job_;
  size_t rank_ = 0;
  float share_ = 0;  // of the sum that a host takes off its residual
  uint64_t num_jobs_ = 0;
  std::unordered_map<uint64_t, State> by_key_;
  std::vector<State> once_;  // of tensors that keep nothing
  std::vector<Part> parts_;
  std::vector<float> factors_;  // of all tensors, while they are added up
};

}  // namespace hvd
