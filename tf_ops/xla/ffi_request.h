// Converts between XLA's FFI and the engine: calls to requests, statuses to
// errors.
#pragma once

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request.h"
#include "xla/ffi/api/ffi.h"

namespace hvd {

// Makes the request of a call, all but `done`. The request borrows the memory
// of the buffers, not the buffers.
Status ToRequest(CollectiveKind kind, xla::ffi::RemainingArgs operands,
                 xla::ffi::RemainingRets results,
                 const xla::ffi::Dictionary& attributes, Request* request);

// Turns an error into XLA's; `equal_rows` is the request's. The text names our
// exception, since only an error's text comes through XLA.
xla::ffi::Error ToFfiError(const Status& status, bool equal_rows);

}  // namespace hvd
