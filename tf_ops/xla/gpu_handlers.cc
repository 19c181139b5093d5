// The handlers for GPUs. XLA runs a program on one thread, which calls them in
// the order of its schedule, far ahead of the GPU. So nothing here waits for
// the GPU. A call marks the end of what is queued on XLA's stream, the engine
// queues the collective behind that mark on its own stream, and the end of the
// call makes XLA's stream wait for it. There are no futures: XLA would wait.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/gpu/gpu.h"
#include "tf_ops/xla/ffi_request.h"
#include "tf_ops/xla/handlers.h"
#include "tf_ops/xla/started_calls.h"
#include "xla/ffi/api/ffi.h"

namespace hvd {
namespace {

namespace ffi = xla::ffi;

StartedCalls& TheCalls() {
  static auto* const calls = new StartedCalls();
  return *calls;
}

// After an error XLA ends the program and reuses its memory. So this makes
// `stream` wait for the calls that this thread has started.
ffi::Error Fail(const Status& status, bool equal_rows, CudaStream stream) {
  while (const auto call = TheCalls().TakeOfThisThread()) {
    (void)call->End(stream);
  }
  return ToFfiError(status, equal_rows);
}

Status AsContext(const Status& status, const Request& request) {
  return status.WithContext(std::string(CollectiveKindName(request.kind)) +
                            " '" + request.name + "'");
}

bool IsSet(const ffi::Dictionary& attributes, const char* name) {
  const auto value = attributes.get<int32_t>(name);
  return value.has_value() && *value != 0;
}

// The memory of the results, without those that have none.
std::vector<void*> MemoryOfResults(size_t num_tensors,
                                   const ffi::RemainingRets& results) {
  std::vector<void*> memory;
  for (size_t i = 0; i < num_tensors; ++i) {
    const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    if (result.size_bytes() > 0) memory.push_back(result.untyped_data());
  }
  return memory;
}

// Sets the GPU of a request. Without memory a GPU has nothing to do: the ranks
// then meet on the CPU.
Status SetPlace(const std::vector<void*>& memory, CudaStream stream,
                Request* request) {
  void* address = memory.empty() ? nullptr : memory[0];
  for (const RequestTensor& t : request->tensors) {
    if (NumElements(t.shape) > 0) address = const_cast<void*>(t.input);
  }
  if (address == nullptr) return Status::Ok();
  request->gpu.stream = stream;
  request->gpu.ordinal = Gpu::OrdinalOf(address);
  if (request->gpu.ordinal >= 0) return Status::Ok();
  return AsContext(Status::Internal("the CUDA runtime does not know the GPU "
                                    "memory that XLA gave"),
                   *request);
}

// A call that another one ends must work in place: its results must not move.
Status CheckInPlace(const Request& request) {
  const bool in_place =
      std::all_of(request.tensors.begin(), request.tensors.end(),
                  [](const RequestTensor& t) {
                    return t.input == t.output || NumElements(t.shape) == 0;
                  });
  if (in_place) return Status::Ok();
  return AsContext(Status::InvalidArgument("with `has_together` results must "
                                           "alias their operands"),
                   request);
}

template <CollectiveKind kind>
ffi::Error Call(void* stream, ffi::RemainingArgs operands,
                ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request;
  const bool has_together = IsSet(attributes, "has_together");
  std::vector<void*> memory;
  Status status = ToRequest(kind, operands, results, attributes, &request);
  if (status.ok()) {
    memory = MemoryOfResults(request.tensors.size(), results);
    status = SetPlace(memory, stream, &request);
  }
  if (status.ok() && has_together) status = CheckInPlace(request);
  const bool equal_rows = request.equal_rows;
  if (!status.ok()) return Fail(status, equal_rows, stream);
  for (void* result : memory) {
    // Left behind by a program that failed in the middle.
    const auto left = TheCalls().Take(result);
    if (left != nullptr) (void)left->End(stream);
  }
  const auto call = StartedCall::Start(std::move(request), std::move(memory));
  if (has_together && !call->results().empty()) {
    TheCalls().Add(call);
    return ffi::Error::Success();
  }
  status = call->End(stream);
  return status.ok() ? ffi::Error::Success() : Fail(status, equal_rows, stream);
}

// Takes out the calls whose results the operands are.
Status TakeCalls(const ffi::RemainingArgs& operands,
                 const ffi::RemainingRets& results, size_t num_tensors,
                 std::vector<std::shared_ptr<StartedCall>>* calls) {
  std::vector<void*> taken;
  for (size_t i = 0; i < num_tensors; ++i) {
    const ffi::AnyBuffer operand = *operands.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    void* const memory = operand.untyped_data();
    if (operand.size_bytes() == 0) continue;
    const bool is_known =
        std::find(taken.begin(), taken.end(), memory) != taken.end();
    const auto call = is_known ? nullptr : TheCalls().Take(memory);
    if (call != nullptr) {
      taken.insert(taken.end(), call->results().begin(), call->results().end());
      calls->push_back(call);
    }
    if ((is_known || call != nullptr) && memory == result.untyped_data()) {
      continue;
    }
    // A copy of a result would hold what was there before the collective.
    return Status::Internal("hvd_together: operand " + std::to_string(i) +
                            " must be, and stay, in the memory of a result of "
                            "a call with `has_together`");
  }
  return Status::Ok();
}

ffi::Error End(void* stream, ffi::RemainingArgs operands,
               ffi::RemainingRets results, ffi::Dictionary attributes) {
  const size_t num_tokens = IsSet(attributes, "has_token") ? 1 : 0;
  if (operands.size() != results.size() || operands.size() < num_tokens) {
    return Fail(Status::InvalidArgument(
                    "hvd_together must have as many results as operands"),
                false, stream);
  }
  std::vector<std::shared_ptr<StartedCall>> calls;
  Status status =
      TakeCalls(operands, results, operands.size() - num_tokens, &calls);
  for (const auto& call : calls) {  // all of them, even after an error
    const Status end = call->End(stream);
    if (status.ok()) status = end;
  }
  return status.ok() ? ffi::Error::Success() : Fail(status, false, stream);
}

auto GpuBinding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
}

}  // namespace

// No traits: a handler must be called each time, not recorded in a CUDA graph.
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuAllreduce,
                              Call<CollectiveKind::kAllreduce>, GpuBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuReducescatter,
                              Call<CollectiveKind::kReducescatter>,
                              GpuBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuBroadcast,
                              Call<CollectiveKind::kBroadcast>, GpuBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuAllgather,
                              Call<CollectiveKind::kAllgather>, GpuBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuAlltoall,
                              Call<CollectiveKind::kAlltoall>, GpuBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiGpuTogether, End, GpuBinding());

}  // namespace hvd
