// A non-blocking NCCL communicator: the ranks of a process set, a GPU each.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/nccl_api.h"

namespace hvd {

// One thread calls Create, Split, Run and Close; any thread may call
// CheckHealth and Abort.
class Communicator {
 public:
  // Called again and again while NCCL works. An error ends the wait and aborts
  // the communicator (PeerLost: after a short grace).
  using Look = std::function<Status()>;

  // Makes an id. One rank calls this and tells the others.
  static Status MakeId(NcclUniqueId* id);

  // All ranks of the set call this at about the same time. It makes `gpu` the
  // calling thread's GPU.
  static Status Create(Gpu* gpu, const NcclUniqueId& id, int rank, int size,
                       const Look& look,
                       std::unique_ptr<Communicator>* communicator);
  // Makes `*part`, a communicator of some of the ranks, in the same order. All
  // ranks call it, with nothing in flight; on non-members it stays null.
  Status Split(bool is_member, int rank, const Look& look,
               std::unique_ptr<Communicator>* part) EXCLUDES(mu_);
  ~Communicator();  // aborts, unless it was closed
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs `calls`, which call NCCL, between ncclGroupStart and ncclGroupEnd.
  // Returns once all are queued on their streams; they end later. After an
  // error the communicator is unusable.
  using Calls = std::function<Status(const NcclApi& nccl, NcclComm comm)>;
  Status Run(const Calls& calls, const Look& look) EXCLUDES(mu_);

  // An error if NCCL has reported one since, or the communicator has ended.
  Status CheckHealth() EXCLUDES(mu_);

  // Stops what runs on this rank's GPU; the other ranks must abort too. Later
  // calls fail with `why`. Idempotent.
  void Abort(const Status& why) EXCLUDES(mu_);

  // Ends it cleanly, with nothing in flight; aborts it after `patience`.
  void Close(std::chrono::milliseconds patience) EXCLUDES(mu_);

  Status AsStatus(int result, const std::string& what) const;

 private:
  explicit Communicator(const NcclApi& nccl) : nccl_(nccl) {}
  // Waits until NCCL has done what it was asked to.
  Status WaitUntilDone(const Look& look) EXCLUDES(mu_);

  const NcclApi& nccl_;
  Mutex mu_;  // held during calls into NCCL, which do not block
  NcclComm comm_ GUARDED_BY(mu_) = nullptr;
  Status ended_ GUARDED_BY(mu_);  // why `comm_` is null
};

}  // namespace hvd
