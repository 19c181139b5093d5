// Hosts as threads of one process: for tests.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/wire/wire.h"

namespace hvd {

// The ends of `num_hosts` hosts. A message is copied when both sides have come:
// nothing is buffered, as with large messages of a real network.
std::vector<std::unique_ptr<Wire>> CreateLoopbackWires(int num_hosts);

}  // namespace hvd
