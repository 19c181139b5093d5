// How bytes travel between the hosts of a job: point to point, without
// buffers of ours. mpi_abi/ and loopback/ implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"

namespace hvd {

// A message that is being sent or received. Its Wire makes it and ends it.
struct WireTransfer {
  uintptr_t handle = 0;
  bool is_active = false;
};

// One host's end. For one thread at a time.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual int host() const = 0;
  virtual int num_hosts() const = 0;

  // Begin to send to, or to receive from, another host. The k-th message that a
  // host sends to another with a tag meets the k-th receive of that tag there;
  // both have the same length, which is not 0. The memory is borrowed until the
  // transfer has ended. 0 <= tag < kNumWireTags.
  virtual Status Send(int host, int tag, const void* data, size_t num_bytes,
                      WireTransfer* transfer) = 0;
  virtual Status Receive(int host, int tag, void* data, size_t num_bytes,
                         WireTransfer* transfer) = 0;

  // Clears `is_active` of those that have ended; all of them were active. One
  // call for all costs as much as one for each. An error is for good.
  virtual Status Poll(const std::vector<WireTransfer*>& transfers) = 0;

  // Moves on what has ended here and not yet at the other side. To be called
  // now and then while no transfer is active.
  virtual Status Progress() = 0;
};

inline constexpr int kNumWireTags = 16;
inline constexpr size_t kMaxWireBytes = 1u << 30;  // of a message

}  // namespace hvd
