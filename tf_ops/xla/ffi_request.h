// Between XLA's FFI and the engine: calls become requests, statuses errors.
#pragma once

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/request.h"
#include "xla/ffi/api/ffi.h"

namespace hvd {

// Makes the request of a call; `done` is left to the caller. The request
// borrows the memory of the buffers, not the buffers.
Status ToRequest(CollectiveKind kind, xla::ffi::RemainingArgs operands,
                 xla::ffi::RemainingRets results,
                 const xla::ffi::Dictionary& attributes, Request* request);

// Of a status that is not ok, of a request with these `equal_rows`. The text
// names our exception, for nothing else of an error comes through XLA.
xla::ffi::Error ToFfiError(const Status& status, bool equal_rows);

}  // namespace hvd
