// A NCCL communicator, which never blocks: the ranks of a process set, each
// with a GPU.
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

// One thread calls Create, Run and Close; any thread CheckHealth and Abort.
class Communicator {
 public:
  // Asked again and again while NCCL has not finished: a status that is not ok
  // ends the wait, and the communicator.
  using Look = std::function<Status()>;

  // What one rank makes and tells the others.
  static Status MakeId(NcclUniqueId* id);

  // All ranks of the set call this at about the same time. The calling
  // thread's GPU must be `gpu`.
  static Status Create(Gpu* gpu, const NcclUniqueId& id, int rank, int size,
                       const Look& look,
                       std::unique_ptr<Communicator>* communicator);
  // All ranks of this one call it, with nothing in flight. The members get one
  // of their own, in the same order; on the others `*part` stays null.
  Status Split(bool is_member, int rank, const Look& look,
               std::unique_ptr<Communicator>* part) EXCLUDES(mu_);
  ~Communicator();  // aborts, unless it was closed
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs `calls`, which make NCCL calls, between ncclGroupStart and
  // ncclGroupEnd, and returns when all of them are on their streams: they have
  // not ended then. After an error the communicator is of no use.
  using Calls = std::function<Status(const NcclApi& nccl, NcclComm comm)>;
  Status Run(const Calls& calls, const Look& look) EXCLUDES(mu_);

  // Whether NCCL has found something wrong since.
  Status CheckHealth() EXCLUDES(mu_);

  // Gives up what runs on the GPU, on this rank: the others have to do the
  // same. Idempotent; later calls fail with `why`.
  void Abort(const Status& why) EXCLUDES(mu_);

  // Ends it in peace, with nothing in flight; aborts if that takes too long.
  void Close(std::chrono::milliseconds patience) EXCLUDES(mu_);

  Status AsStatus(int result, const std::string& what) const;

 private:
  explicit Communicator(const NcclApi& nccl) : nccl_(nccl) {}
  // Until NCCL has done what was asked of it.
  Status WaitUntilDone(const Look& look) EXCLUDES(mu_);

  const NcclApi& nccl_;
  Mutex mu_;  // held for a call into NCCL, which does not block
  NcclComm comm_ GUARDED_BY(mu_) = nullptr;
  Status ended_ GUARDED_BY(mu_);  // why `comm_` is null
};

}  // namespace hvd
