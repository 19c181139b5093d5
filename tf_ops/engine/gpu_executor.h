// Runs the collectives of a process set on this rank's GPU.
//
// The engine negotiates requests on GPU memory as it does all others, and hands
// those of a response to this class, which makes of them copies and NCCL calls
// on a stream of its own (gpu_collectives.h). The way of a request:
//
//   thread that submits: an event behind what its stream has to do (MarkReady)
//   engine's thread:     our stream waits for that event; pack, reduce, unpack;
//                        an event behind all of it (Launch)
//   this class's thread: looks whether that event has come; calls `done`
//
// No thread waits for the GPU, but the last one, which polls. It is also the
// watchdog: when a rank is lost, or NCCL finds something wrong, or nothing ends
// for too long, it aborts the communicator, so that no kernel waits for ever,
// and fails what was in flight. The engine is broken then, as after the loss of
// a rank in a collective of the CPU; shutdown() and init() make everything new.
//
// The first launch connects the GPUs (gpu_connection.h).
//
// Each process set has a communicator and a stream of its own. NCCL asks that
// kernels of several communicators fit on a GPU together: ranks of two sets
// that overlap, and use both at once, may launch them in different orders.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/executor.h"
#include "tf_ops/engine/gpu_collectives.h"
#include "tf_ops/engine/gpu_connection.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// Prepares a request on a GPU that is submitted now: its `ready`, and what
// `options` say of it. Any thread; it does not wait.
Status MarkReady(const GpuOptions& options, Request* request);

// Launch and End are for one thread at a time, the others for any.
class GpuExecutor {
 public:
  // Borrows all but `options`, which has the global ranks.
  GpuExecutor(HostSlabs* slabs, const Membership* membership,
              Doorbell* doorbell, const EngineOptions& options);
  ~GpuExecutor();  // End, and waits for it
  GpuExecutor(const GpuExecutor&) = delete;
  GpuExecutor& operator=(const GpuExecutor&) = delete;

  // Runs the requests of one response, on the GPU `ordinal`, the same in each
  // call (-1: not known yet, the rank has joined), and calls them back, with
  // their errors too. Not ok: the ranks are out of step for good.
  Status Launch(int ordinal, const ExecuteOptions& options,
                std::vector<ReadyRequest> ready) EXCLUDES(mu_);

  // Takes no more; what is in flight may end, if it does so soon, and fails
  // otherwise. Returns at once. Idempotent.
  void End(const Status& why) EXCLUDES(mu_);

  // Whether, and why, what was in flight has failed.
  bool is_broken() const { return is_broken_.load(); }
  Status status() EXCLUDES(mu_);

 private:
  // One launch.
  struct Flight {
    std::shared_ptr<GpuEvent> end;
    std::vector<std::unique_ptr<PendingRequest>> requests;
    std::vector<ReadyRequest> neutral;  // of ranks that have joined
    Clock::time_point launched;
    std::string ahead;  // a request whose program does not wait; empty: none
    Status status;      // not ok: the launch failed half way
  };

  // The ranks are out of step after an error.
  Status LaunchFlight(const ExecuteOptions& options,
                      const std::vector<ReadyRequest>& ready, Flight* flight);
  Status PrepareFlight(const std::vector<ReadyRequest>& ready,
                       StreamMemory* moved, GpuOutputs* outputs);
  Status LendCommunicator(const std::vector<ReadyRequest>& ready);
  bool HasFlights() EXCLUDES(mu_);
  Status MoveToGpu(ReadyRequest* neutral, StreamMemory* moved);
  Status Gate(const std::vector<ReadyRequest>& ready);
  GpuLane Lane();
  // Of this launch.
  CudaStream stream() const { return connection_.track(turn_).stream; }

  void Watch() EXCLUDES(mu_);  // the thread
  // Whether the oldest flight has ended.
  bool TakeEnded(Flight* flight, Status* status) EXCLUDES(mu_);
  double LaunchTimeout() const;  // seconds; 0: none
  // What is wrong; ok: nothing, or not for long enough.
  Status Diagnose() EXCLUDES(mu_);
  void Fail(const Status& why) EXCLUDES(mu_);
  void TellOfLate(const Status& why) EXCLUDES(mu_);
  void Land(Flight flight, const Status& status);
  void CallBack(std::vector<std::unique_ptr<PendingRequest>> requests,
                const Status& status);

  Gpu* gpu() const { return connection_.gpu(); }

  const Membership* const membership_;
  Doorbell* const doorbell_;
  const EngineOptions options_;

  GpuConnection connection_;
  // Of the thread that launches.
  size_t turn_ = 0;
  std::shared_ptr<GpuEvent> last_calls_;  // see GpuLane

  Mutex mu_;
  CondVar changed_;
  std::deque<Flight> flights_ GUARDED_BY(mu_);
  // Launched, and to be called back before they have ended.
  std::vector<std::unique_ptr<PendingRequest>> early_ GUARDED_BY(mu_);
  Status end_ GUARDED_BY(mu_);  // not ok: End was called
  Status broken_ GUARDED_BY(mu_);
  std::atomic<bool> is_broken_{false};

  // Of the thread alone.
  Clock::time_point trouble_since_{};  // when something was first seen wrong
  Status trouble_;                     // what
  std::thread thread_;                 // last: it uses all of the above
};

}  // namespace hvd
