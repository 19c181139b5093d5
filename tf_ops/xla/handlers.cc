#include "tf_ops/xla/handlers.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "tf_ops/process/global_engine.h"
#include "tf_ops/xla/ffi_request.h"
#include "xla/ffi/api/ffi.h"

namespace hvd {
namespace {

namespace ffi = xla::ffi;

template <CollectiveKind kind>
ffi::Future Start(ffi::RemainingArgs operands, ffi::RemainingRets results,
                  ffi::Dictionary attributes) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Request request;
  const Status status =
      ToRequest(kind, operands, results, attributes, &request);
  if (!status.ok()) {
    promise.SetError(ToFfiError(status, request.equal_rows));
    return future;
  }
  request.done = [promise, equal_rows = request.equal_rows](
                     const Status& outcome) mutable {
    if (outcome.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToFfiError(outcome, equal_rows));
    }
  };
  SubmitGlobal(std::move(request));
  return future;
}

template <CollectiveKind kind>
ffi::Error Run(ffi::RemainingArgs operands, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
  Request request;
  Status status = ToRequest(kind, operands, results, attributes, &request);
  if (!status.ok()) return ToFfiError(status, request.equal_rows);
  const bool equal_rows = request.equal_rows;
  const auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> future = promise->get_future();
  request.done = [promise](const Status& outcome) {
    promise->set_value(outcome);
  };
  SubmitGlobal(std::move(request));
  status = future.get();  // the engine ends every request
  return status.ok() ? ffi::Error::Success() : ToFfiError(status, equal_rows);
}

// Checks that XLA has put each result where its operand is.
ffi::Error Together(ffi::RemainingArgs operands, ffi::RemainingRets results,
                    ffi::Dictionary) {
  bool in_place = operands.size() == results.size();
  for (size_t i = 0; in_place && i < operands.size(); ++i) {
    const ffi::AnyBuffer operand = *operands.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    in_place = operand.untyped_data() == result.untyped_data();
  }
  return in_place ? ffi::Error::Success()
                  : ffi::Error::InvalidArgument(
                        "hvd_together: results must alias their operands");
}

auto Binding() {
  return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs();
}

}  // namespace

#define HVD_DEFINE_HANDLERS(name)                                             \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfi##name, Start<CollectiveKind::k##name>, \
                                Binding());                                   \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfi##name##Blocking,                       \
                                Run<CollectiveKind::k##name>, Binding())

HVD_DEFINE_HANDLERS(Allreduce);
HVD_DEFINE_HANDLERS(Reducescatter);
HVD_DEFINE_HANDLERS(Broadcast);
HVD_DEFINE_HANDLERS(Allgather);
HVD_DEFINE_HANDLERS(Alltoall);

#undef HVD_DEFINE_HANDLERS

XLA_FFI_DEFINE_HANDLER_SYMBOL(HvdFfiTogether, Together, Binding());

namespace {

struct Target {
  const char* name;
  XLA_FFI_Handler* handler;
  XLA_FFI_Handler* blocking;
  XLA_FFI_Handler* gpu;
};

constexpr Target kTargets[] = {
    {"hvd_allreduce", HvdFfiAllreduce, HvdFfiAllreduceBlocking,
     HvdFfiGpuAllreduce},
    {"hvd_reducescatter", HvdFfiReducescatter, HvdFfiReducescatterBlocking,
     HvdFfiGpuReducescatter},
    {"hvd_broadcast", HvdFfiBroadcast, HvdFfiBroadcastBlocking,
     HvdFfiGpuBroadcast},
    {"hvd_allgather", HvdFfiAllgather, HvdFfiAllgatherBlocking,
     HvdFfiGpuAllgather},
    {"hvd_alltoall", HvdFfiAlltoall, HvdFfiAlltoallBlocking, HvdFfiGpuAlltoall},
    {"hvd_together", HvdFfiTogether, HvdFfiTogether, HvdFfiGpuTogether},
};

XLA_FFI_Error* Register(const XLA_FFI_Api* api, const Target& target,
                        bool blocking, bool has_gpu) {
  XLA_FFI_Error* const error = xla::ffi::Ffi::RegisterStaticHandler(
      api, target.name, "Host", blocking ? target.blocking : target.handler);
  if (error != nullptr || !has_gpu) return error;
  return xla::ffi::Ffi::RegisterStaticHandler(api, target.name, "CUDA",
                                              target.gpu);
}

}  // namespace
}  // namespace hvd

const char* HvdXlaRegister(const XLA_FFI_Api* api, int blocking, int has_gpu) {
  thread_local std::string message;
  for (const hvd::Target& target : hvd::kTargets) {
    XLA_FFI_Error* const error =
        hvd::Register(api, target, blocking != 0, has_gpu != 0);
    if (error == nullptr) continue;
    message = xla::ffi::internal::GetErrorMessage(api, error);
    xla::ffi::internal::DestroyError(api, error);
    return message.c_str();
  }
  return nullptr;
}
