#include "tf_ops/common/status.h"

namespace hvd {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kMismatch:
      return "Mismatch";
    case StatusCode::kPeerLost:
      return "PeerLost";
    case StatusCode::kStalled:
      return "Stalled";
    case StatusCode::kShutdown:
      return "Shutdown";
    case StatusCode::kNotInitialized:
      return "NotInitialized";
    case StatusCode::kInternal:
      return "Internal";
    case StatusCode::kDamagedFile:
      return "DamagedFile";
  }
  return "Unknown";
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  std::string message(context);
  message += ": ";
  message += message_;
  return Status(code_, std::move(message));
}

}  // namespace hvd
