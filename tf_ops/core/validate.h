// What is wrong with a request although all ranks agree on it.
#pragma once

#include "tf_ops/common/status.h"
#include "tf_ops/core/message.h"

namespace hvd {

// InvalidArgument that says what must hold and what came. The coordinator
// asks this once the ranks agree, so that a bad value on one rank alone is a
// mismatch on all ranks, and nobody is left waiting.
Status ValidateParams(const RequestParams& params, int size);

}  // namespace hvd
