// What has come over a stream, until it is read as messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {

class Inbox {
 public:
  // Where to append what comes.
  std::vector<uint8_t>* bytes() { return &bytes_; }

  // Calls take(message, begin, end) for each whole message, which lies there in
  // bytes(), and drops it.
  template <typename Message, typename Take>
  Status TakeMessages(const MessageLimits& limits, const Take& take) {
    size_t end = 0;
    Message message;
    while (true) {
      const size_t begin = end;
      bool found = false;
      HVD_RETURN_IF_ERROR(Decode(bytes_, &end, limits, &message, &found));
      if (!found) break;
      HVD_RETURN_IF_ERROR(take(std::move(message), begin, end));
    }
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(end));
    return Status::Ok();
  }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace hvd
