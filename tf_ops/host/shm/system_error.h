// What a failed system call is called.
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
