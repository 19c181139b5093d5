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
  int divisor = 0;                                 // see Execution
};

// One thread at a time calls it, holding the engine's lock; a plane may have
// threads of its own. All ranks of a process set run the same responses on the
// same planes in the same order.
class DataPlane {
 public:
  virtual ~DataPlane() = default;  // ends what is in flight

  // Looks at a request of this rank before the other ranks hear of it.
  virtual void Admit(Request*) {}

  // Whether a submitting thread may call Run; see schedule.h, rule 1.
  virtual bool is_for_callers() const = 0;

  // Runs the requests of one response as one collective. They are of one kind
  // and differ only in their tensors. Requests left in `*ready` have ended,
  // each with its `outcome`. Requests taken out end later: the plane calls
  // `done` on a thread of its own. An error means that the ranks are out of
  // step for good; the requests left in `*ready` fail with it.
  virtual Status Run(const RunOptions& options,
                     std::vector<ReadyRequest>* ready) = 0;

  // Checks the requests that Run has taken out; the engine calls it in every
  // pass. An error means that the ranks are out of step for good. A plane that
  // has found one rings the rank's doorbell.
  virtual Status Poll() { return Status::Ok(); }

  // Takes no more requests. Those in flight may still end soon; otherwise they
  // fail with `why`. Returns at once. Idempotent.
  virtual void End(const Status& why) { (void)why; }
};

}  // namespace hvd
