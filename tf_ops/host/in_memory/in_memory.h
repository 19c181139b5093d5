// Ranks as threads of one process: the transport of tests and of size 1.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/host/transport.h"

namespace hvd {

class InMemoryTransport : public Transport {
 public:
  // One transport for each of `size` ranks, over one block of memory that
  // lives as long as the last of them.
  static std::vector<std::unique_ptr<InMemoryTransport>> CreateGroup(int size);

  // Acts as if the process of `dead_rank` had died just now.
  void SimulateDeath(int dead_rank) { MarkDead(dead_rank); }

 private:
  using Transport::Transport;
};

}  // namespace hvd
