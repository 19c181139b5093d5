// Turns the errno of a failed system call into a status.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "tf_ops/common/status.h"

namespace hvd {

inline Status SystemError(const std::string& what) {
  return Status::Internal(what + " failed: " + std::strerror(errno));
}

}  // namespace hvd
