// Runs the collectives of a process set on this rank's GPU.
//
// The engine negotiates requests on GPU memory like all others. This plane
// turns them into copies and NCCL calls on its own stream (gpu_collectives.h).
// A request passes three threads:
//
//   submitting thread: records an event behind its stream's work (MarkReady)
//   engine's thread:   lets our stream wait for that event; queues pack, reduce
//                      and unpack; records an event behind them (Run)
//   our thread:        polls that event
//   completion thread: calls `done`, which may block
//
// Only our thread waits for the GPU. It is also the watchdog: if a rank is
// lost, NCCL reports an error or nothing ends for too long, it has the
// communicator aborted, so that no kernel waits for ever, and fails what is in
// flight, whether NCCL obeys or not. The engine is then broken, as after the
// loss of a rank in a collective on the CPU; shutdown() and init() make
// everything new, unless NCCL hangs or CUDA can do no more in this process.
//
// The first launch connects the GPUs (gpu_connection.h).
//
// Each process set has its own communicator. The set of all ranks and those
// inside a host launch in one order (host/launch_order.h) and share streams and
// fusion buffer; their kernels run one after another.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/engine/completion_queue.h"
#include "tf_ops/engine/data_plane.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/engine/gpu_collectives.h"
#include "tf_ops/engine/gpu_connection.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/gpu/communicator.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/membership.h"

namespace hvd {

// Prepares a GPU request that is being submitted: records its `ready` event and
// applies `options`. Any thread may call it; it does not wait.
Status MarkReady(const GpuOptions& options, Request* request);

class GpuPlane : public DataPlane {
 public:
  // Borrows all but `options`, which has the global ranks.
  GpuPlane(Collectives* collectives, Membership* membership, Doorbell* doorbell,
           const EngineOptions& options, EventLog* log);
  ~GpuPlane() override;  // calls End and waits for our thread
  GpuPlane(const GpuPlane&) = delete;
  GpuPlane& operator=(const GpuPlane&) = delete;

  // The first request decides which GPU the rank uses.
  void Admit(Request* request) override;
  // A thread that feeds a GPU must not be held up.
  bool is_for_callers() const override { return false; }
  // Launches the requests and takes them out of `*ready`, unless none of their
  // work runs.
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
    std::string ahead;  // a request that its program does not wait for, if any
    Status status;      // not ok: the launch failed half way
  };

  // Launches in this rank's turn.
  Status LaunchInOrder(const RunOptions& options,
                       std::vector<ReadyRequest>* ready, Flight* flight);
  // After an error the ranks are out of step.
  Status LaunchFlight(const RunOptions& options,
                      std::vector<ReadyRequest>* ready, Flight* flight);
  Status PrepareFlight(std::vector<ReadyRequest>* ready, StreamMemory* moved,
                       GpuOutputs* outputs);
  // Tells launched requests where their work ends on the stream.
  Status ChoosePacking();  // unless it has been chosen
  Status TellOfEnd(const std::vector<ReadyRequest>& ready,
                   const std::shared_ptr<GpuEvent>& end);
  // Hands a launch to the watching thread.
  void TakeOff(Flight flight, std::vector<ReadyRequest>* ready) EXCLUDES(mu_);
  Status LendCommunicator(const std::vector<ReadyRequest>& ready);
  bool HasFlights() EXCLUDES(mu_);
  Status MoveToGpu(ReadyRequest* neutral, StreamMemory* moved);
  Status Gate(const std::vector<ReadyRequest>& ready);
  GpuLane Lane();
  Communicator::Look MakeLook();
  // The stream of this launch.
  CudaStream stream() const { return track_.stream; }

  void Watch() EXCLUDES(mu_);  // the thread
  // Waits until there may be something to watch. False: never again.
  bool AwaitWork() EXCLUDES(mu_);
  void SetLaunching(bool is_launching) EXCLUDES(mu_);
  // Takes the oldest flight if it has ended.
  bool TakeEnded(Flight* flight, Status* status) EXCLUDES(mu_);
  double LaunchTimeout() const;  // seconds; 0: none
  // An error once something has been wrong for long enough.
  Status Diagnose() EXCLUDES(mu_);
  void Fail(const Status& why) EXCLUDES(mu_);
  void TellOfLate(const Status& why) EXCLUDES(mu_);
  void Land(Flight flight, const Status& status);
  // Hands them to the completion thread. Any thread.
  void CallBack(std::vector<std::unique_ptr<PendingRequest>> requests,
                const Status& status);

  Gpu* gpu() const { return connection_.gpu(); }

  Collectives* const collectives_;
  Membership* const membership_;
  Doorbell* const doorbell_;
  const EngineOptions options_;
  EventLog* const log_;

  GpuConnection connection_;
  // Used by the launching thread alone:
  int ordinal_ = -1;  // of the first request; -1: none yet, the rank has joined
  GpuTrack track_;    // of this launch
  std::optional<Packing> packing_;

  Mutex mu_;
  CondVar changed_;
  std::deque<Flight> flights_ GUARDED_BY(mu_);
  bool is_launching_ GUARDED_BY(mu_) = false;  // NCCL may wait for a rank
  Clock::time_point launching_since_ GUARDED_BY(mu_);
  Status end_ GUARDED_BY(mu_);  // not ok: End was called
  Status broken_ GUARDED_BY(mu_);
  std::atomic<bool> is_broken_{false};

  // Used by the watching thread alone:
  Clock::time_point trouble_since_{};  // when something was first seen wrong
  Status trouble_;                     // what
  CompletionQueue completions_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hvd
