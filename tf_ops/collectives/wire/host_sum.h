// Adds up floats that are in a wire's own memory over the hosts.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/wire/wire.h"

namespace hvd {

// For one thread.
class HostSum {
 public:
  explicit HostSum(Wire* wire) : wire_(wire) {}  // borrowed

  // Replaces `count` values by their sums, in the order of the hosts, with
  // equal bits on all hosts. Calls `idle` while it waits. After an error,
  // transfers may be in flight: `values` and this must then stay.
  Status Run(float* values, size_t count, const std::function<Status()>& idle);
  bool has_transfers() const { return !transfers_.empty(); }

 private:
  // Sends and receives `num_bytes`, unless there are none.
  Status Send(int host, int tag, const std::byte* data, size_t num_bytes);
  Status Receive(int host, int tag, std::byte* data, size_t num_bytes);
  Status WaitForAll(const std::function<Status()>& idle);

  Wire* const wire_;
  std::vector<std::byte> incoming_;
  std::vector<WireTransfer> transfers_;  // in flight; they do not move
  std::vector<WireTransfer*> polled_;
};

}  // namespace hvd
