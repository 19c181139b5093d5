// Runs the collectives of a process set on this rank's GPU.
//
// The engine negotiates requests on GPU memory as it does all others. This
// plane makes copies and NCCL calls of them on a stream of its own
// (gpu_collectives.h). The way of a request:
//
//   thread that submits: an event behind what its stream has to do (MarkReady)
//   engine's thread:     our stream waits for that event; pack, reduce, unpack;
//                        an event behind all of it (Run)
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
#include "tf_ops/engine/data_plane.h"
#include "tf_ops/engine/event_log.h"
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

class GpuPlane : public DataPlane {
 public:
  // Borrows all but `options`, which has the global ranks.
  GpuPlane(HostSlabs* slabs, const Membership* membership, Doorbell* doorbell,
           const EngineOptions& options, EventLog* log);
  ~GpuPlane() override;  // End, and waits for it
  GpuPlane(const GpuPlane&) = delete;
  GpuPlane& operator=(const GpuPlane&) = delete;

  // The first one decides which GPU the rank uses.
  void Admit(Request* request) override;
  // A thread that feeds a GPU has no time to lose.
  bool is_for_callers() const override { return false; }
  // Launches the requests and takes them out, unless nothing of them runs.
  Status Run(const RunOptions& options,
             std::vector<ReadyRequest>* ready) override EXCLUDES(mu_);
  Status Poll() override EXCLUDES(mu_);
  void End(const Status& why) override EXCLUDES(mu_);

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
  Status LaunchFlight(const RunOptions& options,
                      std::vector<ReadyRequest>* ready, Flight* flight);
  Status PrepareFlight(std::vector<ReadyRequest>* ready, StreamMemory* moved,
                       GpuOutputs* outputs);
  // The outputs' events of what has been launched are told.
  Status TellOfEnd(const std::vector<ReadyRequest>& ready,
                   const std::shared_ptr<GpuEvent>& end);
  // Hands what was launched to the thread that watches.
  void TakeOff(Flight flight, std::vector<ReadyRequest>* ready) EXCLUDES(mu_);
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
  EventLog* const log_;

  GpuConnection connection_;
  // Of the thread that launches.
  int ordinal_ = -1;  // of the first request; -1: none yet, the rank has joined
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
