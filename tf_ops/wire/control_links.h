// Byte streams between the leaders of hosts, a star around host 0.
#pragma once

#include <cstdint>
#include <vector>

#include "tf_ops/common/status.h"

namespace hvd {

// What ControlChannel is between the ranks of a host. Bytes that arrive, and
// room for what is unsent, ring the doorbell of this leader's engine. For one
// thread at a time.
class ControlLinks {
 public:
  ControlLinks() = default;
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;
  virtual ~ControlLinks();

  virtual int host() const = 0;  // this one's number, from 0 on
  virtual int num_hosts() const = 0;

  // Queues `bytes`, of any length, and sends nothing yet. `host` is 0, or this
  // is host 0.
  virtual void Send(int host, const std::vector<uint8_t>& bytes) = 0;
  // Sends what goes without waiting.
  virtual Status Flush() = 0;
  // Whether something is left to send; a later Flush is needed then.
  virtual bool has_unsent() const = 0;
  // Sends everything, waiting for the readers.
  virtual Status FlushAll() = 0;
  // This leader knows of a loss: the other hosts shall hear of it at once.
  virtual void TellLosses() {}

  // Appends what `host` has sent to `*bytes`; `*received`: if anything. Costs
  // next to nothing if nothing has come: rank 0 asks for each host in turn.
  virtual Status Receive(int host, std::vector<uint8_t>* bytes,
                         bool* received) = 0;
};

}  // namespace hvd
