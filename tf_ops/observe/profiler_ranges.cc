#include "tf_ops/observe/profiler_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <cstdlib>

#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("hvd_keras");
  return domain;
}

uint64_t BeginNvtx(const std::string& text, uint64_t num_bytes) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = num_bytes;
  return nvtxDomainRangeStartEx(Domain(), &attributes);
}

// "allreduce" to "HorovodAllreduce", as TensorFlow calls the op.
std::string OpName(CollectiveKind kind) {
  std::string name = CollectiveKindName(kind);
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] -= 'a' - 'A';
  return "Horovod" + name;
}

}  // namespace

ProfilerRanges::ProfilerRanges()
    : has_nvtx_(std::getenv("NVTX_INJECTION64_PATH") != nullptr) {}

void ProfilerRanges::SetTraceMe(const TraceMeApi& api) {
  const MutexLock lock(&mu_);
  if (has_trace_me_.load(std::memory_order_relaxed)) return;
  trace_me_ = api;
  has_trace_me_.store(true, std::memory_order_release);
}

bool ProfilerRanges::is_traced() const {
  return has_trace_me_.load(std::memory_order_acquire) &&
         trace_me_.level->load(std::memory_order_relaxed) >= 1;
}

void ProfilerRanges::OnEvent(const Event& event) {
  if (event.step == Event::Step::kBegun) {
    if (has_nvtx_ || is_traced()) Begin(event);
  } else if (event.step == Event::Step::kEnded && event.has_begun) {
    if (num_ranges_.load(std::memory_order_relaxed) > 0) End(event);
  }
}

void ProfilerRanges::Begin(const Event& event) {
  const Request& request = *event.request;
  const MutexLock lock(&mu_);
  Range& range = ranges_[{request.process_set_id, event.collective_id}];
  if (range.num_requests++ == 0) {
    num_ranges_.fetch_add(1, std::memory_order_relaxed);
    range.op = OpName(request.kind);
    range.name = request.name;
    range.begun = event.time;
    if (has_nvtx_) {
      range.nvtx_id = BeginNvtx(range.op + ":" + range.name, NumBytes(request));
    }
  }
  range.num_bytes += NumBytes(request);
}

void ProfilerRanges::End(const Event& event) {
  Range range;
  {
    const MutexLock lock(&mu_);
    const auto found =
        ranges_.find({event.request->process_set_id, event.collective_id});
    // The first request that ends ends the collective.
    if (found == ranges_.end()) return;
    range = std::move(found->second);
    ranges_.erase(found);
    num_ranges_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (has_nvtx_) nvtxDomainRangeEnd(Domain(), range.nvtx_id);
  if (!is_traced()) return;
  const std::chrono::nanoseconds end =
      std::chrono::system_clock::now().time_since_epoch();
  // The profiler shows what is between the # as the arguments.
  std::string text = range.op + ":" + range.name +
                     "#bytes=" + std::to_string(range.num_bytes) +
                     ",requests=" + std::to_string(range.num_requests) + "#";
  const std::chrono::nanoseconds took = Clock::now() - range.begun;
  trace_me_.record({std::move(text), (end - took).count(), end.count()});
}

ProfilerRanges* TheProfilerRanges() {
  static auto* const ranges = new ProfilerRanges();
  return ranges;
}

}  // namespace hvd
