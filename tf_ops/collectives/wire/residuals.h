// What a host has lost by packing, tensor by tensor, from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tf_ops/collectives/ranges.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/collectives/wire/wire_job.h"

namespace hvd {

// A tensor has a residual from its second call on, so that names that come once
// take no memory. It begins with zeros, and again where the bytes of the tensor
// change. It goes after kMostIdleJobs without a call. For one thread.
class Residuals {
 public:
  static constexpr uint64_t kMostIdleJobs = 10000;

  // Looks up what `job` needs, until the next call. Drops what is old.
  void Prepare(const WireJob& job);

  // Calls f(first, count, residual) for the runs of units of `part`, which is
  // of the block of `host`; `first` counts from the part's beginning. The
  // residual has kPackedElements reals a unit, or is null.
  template <typename F>
  void ForEachRun(int host, Range part, size_t unit, F f) const {
    if (by_host_.empty()) return f(size_t{0}, part.size() / unit, nullptr);
    size_t first = 0;
    by_host_[static_cast<size_t>(host)].ForEach(
        part.begin / unit * unit_bytes_, part.end / unit * unit_bytes_,
        [&](const std::byte*, std::byte* residual, size_t num_bytes) {
          f(first, num_bytes / unit_bytes_, residual);
          first += num_bytes / unit_bytes_;
        });
  }

  size_t num_tensors() const { return by_key_.size(); }  // that have been seen

 private:
  struct Residual {
    uint64_t num_bytes = 0;  // of the tensor
    uint64_t last_job = 0;
    std::unique_ptr<std::byte[]> memory;  // null before the second call
  };

  // Null where there is none.
  std::byte* Find(const WireJob::Tensor& tensor, size_t residual_bytes);
  void DropIdle();

  uint64_t num_jobs_ = 0;
  size_t unit_bytes_ = 0;  // of the residual of a unit
  std::unordered_map<uint64_t, Residual> by_key_;
  std::vector<TensorList> by_host_;  // of this job; empty: it has none
};

}  // namespace hvd
