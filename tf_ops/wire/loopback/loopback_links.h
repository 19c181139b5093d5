// Hosts as threads of one process: for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "tf_ops/wire/control_links.h"

namespace hvd {

struct LoopbackOptions {
  // What a stream holds that is not read yet.
  size_t capacity_bytes = 64 << 10;
  // How long FlushAll waits for a reader.
  std::chrono::milliseconds timeout{20000};
  // Something has arrived at `host`, or what it sends goes on; may be null.
  // Any thread calls it.
  std::function<void(int host)> ring;
};

// The links of each of `num_hosts` hosts, in memory that lives as long as the
// last of them.
std::vector<std::unique_ptr<ControlLinks>> CreateLoopbackLinks(
    int num_hosts, const LoopbackOptions& options);

}  // namespace hvd
