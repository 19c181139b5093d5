// What moves the data of a collective: in the memory of a host, on GPUs, or
// over a network.
#pragma once

#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/ready_request.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// What all requests of a response share.
struct RunOptions {
  const std::vector<int>* global_ranks = nullptr;  // by rank of the process set
  int divisor = 0;                                 // see Response
};

// For one thread at a time, which holds the engine's lock; a plane may have
// threads of its own. All ranks of a process set run the same responses on the
// same planes in the same order.
class DataPlane {
 public:
  virtual ~DataPlane() = default;  // ends what is in flight

  // Looks at a request of this rank before the other ranks hear of it.
  virtual void Admit(Request*) {}

  // Whether a thread that submits may Run: it has other work, see schedule.h.
  virtual bool is_for_callers() const = 0;

  // Runs the requests of one response, of one kind, as one collective. They
  // are alike but for their tensors. What it leaves in `*ready` has ended, each
  // with its `outcome`. What it takes out ends later: the plane calls `done` on
  // a thread of its own. Not ok: the ranks are out of step for good, and what
  // it leaves fails with that.
  virtual Status Run(const RunOptions& options,
                     std::vector<ReadyRequest>* ready) = 0;

  // Called in every pass of the engine, for what Run has taken out. Not ok: the
  // ranks are out of step for good. A plane that finds out rings the rank's
  // doorbell.
  virtual Status Poll() { return Status::Ok(); }

  // Takes no more; what is in flight may end, if it does so soon, and fails
  // with `why` otherwise. Returns at once. Idempotent.
  virtual void End(const Status& why) { (void)why; }
};

}  // namespace hvd
