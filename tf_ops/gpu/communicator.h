// A non-blocking NCCL communicator: the ranks of a process set, a GPU each.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/nccl_api.h"

namespace hvd {

// One thread calls Create, Split, Run, Close and AwaitEnd; any thread may call
// the rest.
// No lock is held during a call into NCCL: such a call may wait for a rank that
// has died, and Abort must end it. So Abort runs on a thread of its own, which
// is left behind if it hangs.
class Communicator {
 public:
  // Called again and again while NCCL works. An error ends the wait (PeerLost:
  // after a short grace); then the communicator must be aborted.
  using Look = std::function<Status()>;

  // How long NCCL may take to abort or destroy a communicator.
  static constexpr std::chrono::milliseconds kEndPatience{5000};

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
               std::unique_ptr<Communicator>* part);
  ~Communicator();  // aborts, unless it was closed, and awaits that
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs `calls`, which call NCCL, between ncclGroupStart and ncclGroupEnd.
  // Returns once all are queued on their streams; they end later. After an
  // error the communicator is unusable.
  using Calls = std::function<Status(const NcclApi& nccl, NcclComm comm)>;
  Status Run(const Calls& calls, const Look& look);

  // An error if NCCL has reported one since, or the communicator has ended. Ok
  // while another thread is in NCCL. Does not wait.
  Status CheckHealth();

  // Begins to stop what runs on this rank's GPU; the other ranks must abort
  // too. Later calls fail with `why`. Idempotent; does not wait.
  void Abort(const Status& why);

  // Ends it cleanly, with nothing in flight; aborts it after `patience`.
  void Close(std::chrono::milliseconds patience);

  // Waits for the end of Abort or Close, `patience` at most. False: NCCL hangs,
  // and keeps its memory, its streams and its kernels; later calls do not wait.
  bool AwaitEnd(std::chrono::milliseconds patience);

  Status AsStatus(int result, const std::string& what) const;

 private:
  // What a thread that hangs in NCCL keeps.
  struct Core;
  class Visit;

  Communicator(const NcclApi& nccl, Gpu* gpu);
  // Waits until NCCL has done what it was asked to.
  Status WaitUntilDone(const Look& look);
  // Calls end(comm) on a thread of its own.
  static void EndOnThread(const std::shared_ptr<Core>& core,
                          int (*end)(NcclComm), const Status& why);

  const NcclApi& nccl_;
  const std::shared_ptr<Core> core_;
};

}  // namespace hvd
