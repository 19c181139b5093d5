// The result of an operation that can fail: a code and a message for people.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace hvd {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // the call is wrong, whatever the other ranks do
  kMismatch,         // ranks disagree about a collective
  kPeerLost,         // a rank died or left the job
  kStalled,          // a rank did not come in time
  kShutdown,         // the engine was shut down while the call was pending
  kNotInitialized,   // init() was not called, or shutdown() was
  kInternal,         // a system call failed or an invariant does not hold
  kDamagedFile,      // a file does not hold what was written; stays on its rank
};

// "InvalidArgument", "Mismatch", ...: the names that Python maps to classes.
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status Mismatch(std::string message) {
    return Status(StatusCode::kMismatch, std::move(message));
  }
  static Status PeerLost(std::string message) {
    return Status(StatusCode::kPeerLost, std::move(message));
  }
  static Status Stalled(std::string message) {
    return Status(StatusCode::kStalled, std::move(message));
  }
  static Status Shutdown(std::string message) {
    return Status(StatusCode::kShutdown, std::move(message));
  }
  static Status NotInitialized(std::string message) {
    return Status(StatusCode::kNotInitialized, std::move(message));
  }
  static Status Internal(std::string message) {
    return Status(StatusCode::kInternal, std::move(message));
  }

  static Status DamagedFile(std::string message) {
    return Status(StatusCode::kDamagedFile, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  bool operator==(const Status& o) const {
    return code_ == o.code_ && message_ == o.message_;
  }

  // The same code, with `context` and ": " put before the message.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

#define HVD_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::hvd::Status hvd_status_ = (expression);  \
    if (!hvd_status_.ok()) return hvd_status_; \
  } while (false)

}  // namespace hvd
