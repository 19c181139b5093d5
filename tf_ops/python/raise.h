// Raises statuses as exceptions of hvd_keras.exceptions.
#pragma once

#include "tf_ops/common/status.h"

namespace hvd {

// Raises the class that hvd_keras.exceptions has for the code.
void RaiseIfError(const Status& status);

}  // namespace hvd
