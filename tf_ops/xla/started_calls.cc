#include "tf_ops/xla/started_calls.h"

#include <utility>

#include "tf_ops/process/global_engine.h"

namespace hvd {

std::shared_ptr<StartedCall> StartedCall::Start(Request request,
                                                std::vector<void*> results) {
  std::shared_ptr<StartedCall> call(new StartedCall(std::move(results)));
  call->ordinal_ = request.gpu.ordinal;
  request.take_end = [call](std::shared_ptr<GpuEvent> end) {
    call->end_ = std::move(end);
    call->promise_.set_value(Status::Ok());
  };
  request.done = [call](const Status& status) {
    if (call->end_ == nullptr) call->promise_.set_value(status);
  };
  SubmitGlobal(std::move(request));
  return call;
}

Status StartedCall::End(CudaStream stream) {
  HVD_RETURN_IF_ERROR(launched_.get());  // the engine ends every request
  if (end_ == nullptr) return Status::Ok();
  Gpu* gpu = nullptr;
  HVD_RETURN_IF_ERROR(Gpu::Get(ordinal_, &gpu));
  const Gpu::Visit visit(*gpu);
  return gpu->Wait(stream, *end_);
}

void StartedCalls::Add(const std::shared_ptr<StartedCall>& call) {
  MutexLock lock(&mu_);
  for (void* result : call->results()) by_result_[result] = call;
}

std::shared_ptr<StartedCall> StartedCalls::Take(void* result) {
  MutexLock lock(&mu_);
  const auto found = by_result_.find(result);
  if (found == by_result_.end()) return nullptr;
  std::shared_ptr<StartedCall> call = found->second;
  Remove(*call);
  return call;
}

std::shared_ptr<StartedCall> StartedCalls::TakeOfThisThread() {
  MutexLock lock(&mu_);
  for (const auto& [result, call] : by_result_) {
    if (call->thread() != std::this_thread::get_id()) continue;
    const std::shared_ptr<StartedCall> found = call;
    Remove(*found);
    return found;
  }
  return nullptr;
}

void StartedCalls::Remove(const StartedCall& call) {
  for (void* result : call.results()) by_result_.erase(result);
}

}  // namespace hvd
