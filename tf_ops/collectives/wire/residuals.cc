#include "tf_ops/collectives/wire/residuals.h"

#include <utility>

namespace hvd {

void Residuals::Prepare(const WireJob& job) {
  by_host_.clear();
  if (job.tensors.empty()) return;
  if (++num_jobs_ % 1024 == 0) DropIdle();
  const size_t unit = UnitOf(job.spec);
  const int num_hosts = static_cast<int>(job.bytes.size());
  unit_bytes_ = kPackedElements * RealBytes(job.spec.dtype);
  std::vector<std::vector<ListTensor>> lists(job.bytes.size());
  for (const WireJob::Tensor& tensor : job.tensors) {
    std::vector<size_t> sizes;  // of the residual, by host
    size_t total = 0;
    for (int host = 0; host < num_hosts; ++host) {
      const Range part = PartOf(tensor.num_bytes, num_hosts, host, unit);
      sizes.push_back(DivideUp(part.size(), unit) * unit_bytes_);
      total += sizes.back();
    }
    std::byte* next = Find(tensor, total);
    for (size_t host = 0; host < sizes.size(); ++host) {
      lists[host].push_back({nullptr, next, sizes[host]});
      if (next != nullptr) next += sizes[host];
    }
  }
  for (std::vector<ListTensor>& list : lists) {
    by_host_.emplace_back(std::move(list));
  }
}

std::byte* Residuals::Find(const WireJob::Tensor& tensor,
                           size_t residual_bytes) {
  if (tensor.key == 0) return nullptr;
  const auto [found, is_new] = by_key_.try_emplace(tensor.key);
  Residual& residual = found->second;
  // A second tensor of this job with the same key goes without.
  if (!is_new && residual.last_job == num_jobs_) return nullptr;
  residual.last_job = num_jobs_;
  if (is_new || residual.num_bytes != tensor.num_bytes) {
    residual.num_bytes = tensor.num_bytes;
    residual.memory = nullptr;
    return nullptr;
  }
  if (residual.memory == nullptr) {
    residual.memory = std::make_unique<std::byte[]>(residual_bytes);  // zeros
  }
  return residual.memory.get();
}

void Residuals::DropIdle() {
  for (auto it = by_key_.begin(); it != by_key_.end();) {
    const bool is_idle = it->second.last_job + kMostIdleJobs < num_jobs_;
    it = is_idle ? by_key_.erase(it) : std::next(it);
  }
}

}  // namespace hvd
