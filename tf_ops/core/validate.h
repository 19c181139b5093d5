// What one rank alone can see to be wrong with a request.
#pragma once

#include "tf_ops/common/status.h"
#include "tf_ops/core/request.h"

namespace hvd {

// InvalidArgument that says what must hold and what came.
Status ValidateRequest(const Request& request, int size);

}  // namespace hvd
