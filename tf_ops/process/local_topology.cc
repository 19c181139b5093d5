#include "tf_ops/process/local_topology.h"

#include <atomic>

namespace hvd {
namespace {

std::atomic<LocalTopology> current{LocalTopology()};

}  // namespace

void SetLocalTopology(const LocalTopology& topology) { current = topology; }

LocalTopology GetLocalTopology() { return current; }

}  // namespace hvd
