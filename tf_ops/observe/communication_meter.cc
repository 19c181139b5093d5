#include "tf_ops/observe/communication_meter.h"

#include <chrono>

#include "tf_ops/negotiation/tensor_rows.h"
#include "tf_ops/observe/step_names.h"

namespace hvd {
namespace {

// `MetricAverageCallback` names its collectives so.
constexpr char kMetrics[] = "MetricAverageCallback/";

}  // namespace

bool SharesValues(const Request& request) {
  if (IsOfStep(request.name)) return true;
  if (request.name.rfind(kMetrics, 0) == 0) return false;
  int64_t num_values = 0;
  for (const RequestTensor& tensor : request.tensors) {
    if (IsFloating(tensor.dtype)) num_values += NumElements(tensor.shape);
  }
  return num_values > (request.kind == CollectiveKind::kBroadcast ? 0 : 1);
}

CommunicationMeter::CommunicationMeter(int size) : same_inputs_(size) {
  sums_.num_last.resize(static_cast<size_t>(size));
  sums_.late_ns.resize(static_cast<size_t>(size));
}

void CommunicationMeter::OnEvent(const Event& event) {
  if (event.is_neutral) return;
  if (event.step == Event::Step::kNegotiated) {
    if (event.last_rank < 0) return;
    const auto last = static_cast<size_t>(event.last_rank);
    const MutexLock lock(&mu_);
    if (last >= sums_.num_last.size()) return;
    ++sums_.num_last[last];
    sums_.late_ns[last] += static_cast<uint64_t>(event.late_by.count());
  } else if (event.step == Event::Step::kBegun) {
    const bool is_of_step = IsOfStep(event.request->name);
    const bool is_shared = SharesValues(*event.request);
    const MutexLock lock(&mu_);
    if (is_of_step) ++sums_.num_steps;
    if (event.request->kind == CollectiveKind::kBroadcast) {
      sums_.num_broadcast_bytes += NumBytes(*event.request);
    }
    if (is_shared) {
      ++sums_.num_shared;
      same_inputs_.Begin(*event.request);
    }
    if (num_running_++ == 0) running_since_ = event.time;
  } else if (event.step == Event::Step::kEnded && event.has_begun) {
    const MutexLock lock(&mu_);
    same_inputs_.End(*event.request, event.status->ok());
    if (--num_running_ > 0 || event.time < running_since_) return;
    const std::chrono::nanoseconds time = event.time - running_since_;
    sums_.running_ns += static_cast<uint64_t>(time.count());
  }
}

CommunicationSums CommunicationMeter::Sums() const {
  const MutexLock lock(&mu_);
  CommunicationSums sums = sums_;
  sums.num_same = same_inputs_.num();
  return sums;
}

}  // namespace hvd
