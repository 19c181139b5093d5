#include "tf_ops/engine/gpu_plane.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "tf_ops/common/log.h"
#include "tf_ops/engine/finish.h"
#include "tf_ops/engine/gpu_packing.h"
#include "tf_ops/engine/gpu_reduction.h"
#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Time to end what a rank may have finished before it was lost.
constexpr milliseconds kGrace{300};
// How long kernels may take to notice an abort.
constexpr milliseconds kAbortPatience{500};
constexpr milliseconds kCheckInterval{10};
// How soon the watching thread looks at a launch that takes long.
constexpr milliseconds kIdleInterval{100};
// A launch gets this many times the patience for a missing rank: all ranks have
// come, but each GPU may first have much other work to finish.
constexpr double kPatienceFactor = 10.0;

// Waits between two looks: first briefly, later longer.
void Pause(int num_looks) {
  if (num_looks < 100) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(
        std::chrono::microseconds(num_looks < 2000 ? 10 : 100));
  }
}

}  // namespace

Status MarkReady(const GpuOptions& options, Request* request) {
  if (options.done_in_stream_order) request->gpu.done_in_stream_order = true;
  Gpu* gpu = nullptr;
  HVD_RETURN_IF_ERROR(Gpu::Get(request->gpu.ordinal, &gpu));
  HVD_RETURN_IF_ERROR(CheckReduction(*gpu, *request));
  return gpu->Record(request->gpu.stream, &request->ready);
}

GpuPlane::GpuPlane(Collectives* collectives, Membership* membership,
                   Doorbell* doorbell, const EngineOptions& options,
                   EventLog* log)
    : collectives_(collectives),
      membership_(membership),
      doorbell_(doorbell),
      options_(options),
      log_(log),
      connection_(collectives, membership, options),
      packing_(options.gpu.packing),
      thread_([this] { Watch(); }) {}

GpuPlane::~GpuPlane() {
  End(Status::Shutdown("the engine was destroyed"));
  thread_.join();
  const bool in_peace = end_.code() == StatusCode::kShutdown && broken_.ok();
  if (in_peace) {
    connection_.Close();
  } else {
    connection_.Abandon(end_);
  }
}

// ---- The engine's thread ----

void GpuPlane::Admit(Request* request) {
  if (ordinal_ < 0) ordinal_ = request->gpu.ordinal;
  request->gpu.is_second = request->gpu.ordinal != ordinal_;
}

Status GpuPlane::Run(const RunOptions& options,
                     std::vector<ReadyRequest>* ready) {
  bool is_fatal = false;
  Status status = CheckDivisor(options, *ready);
  if (status.ok() && !connection_.is_open()) {
    status = connection_.Open(ordinal_, &is_fatal);
  }
  Flight flight;
  if (status.ok()) {
    SetLaunching(true);
    status = flight.status = LaunchInOrder(options, ready, &flight);
    is_fatal = !status.ok();
    if (flight.end == nullptr) SetLaunching(false);  // else TakeOff does
  }
  if (is_fatal) connection_.Abandon(status);
  if (!status.ok() && flight.end == nullptr) {  // nothing runs
    for (ReadyRequest& one : *ready) one.outcome = status;
    return is_fatal ? status : Status::Ok();
  }
  TakeOff(std::move(flight), ready);
  return status;
}

void GpuPlane::TakeOff(Flight flight, std::vector<ReadyRequest>* ready) {
  bool is_early = flight.status.ok();
  for (ReadyRequest& one : *ready) {
    if (one.is_neutral) {
      flight.neutral.push_back(std::move(one));
      continue;
    }
    const Request& request = one.pending->request;
    const bool goes_on =
        request.gpu.done_in_stream_order || request.take_end != nullptr;
    if (flight.status.ok() && goes_on && flight.ahead.empty()) {
      flight.ahead = std::string(CollectiveKindName(request.kind)) + " '" +
                     request.name + "'";
    }
    is_early = is_early && request.gpu.done_in_stream_order;
    flight.requests.push_back(std::move(one.pending));
  }
  ready->clear();
  if (is_early) CallBack(std::exchange(flight.requests, {}), Status::Ok());
  MutexLock lock(&mu_);
  is_launching_ = false;
  flights_.push_back(std::move(flight));
  changed_.NotifyOne();
}

void GpuPlane::SetLaunching(bool is_launching) {
  MutexLock lock(&mu_);
  const bool is_first = launching_since_ == Clock::time_point{};
  is_launching_ = is_launching;
  launching_since_ = Clock::now();
  if (is_first) changed_.NotifyOne();  // it watches launches from now on
}

Status GpuPlane::LaunchInOrder(const RunOptions& options,
                               std::vector<ReadyRequest>* ready,
                               Flight* flight) {
  LaunchOrder* const order = connection_.order();
  if (order == nullptr) return LaunchFlight(options, ready, flight);
  HVD_RETURN_IF_ERROR(order->Begin(MakeLook()));
  const Status status = LaunchFlight(options, ready, flight);
  order->End();
  return status;
}

Status GpuPlane::LaunchFlight(const RunOptions& options,
                              std::vector<ReadyRequest>* ready,
                              Flight* flight) {
  flight->launched = Clock::now();
  track_ = connection_.tracks()->Next();
  HVD_RETURN_IF_ERROR(gpu()->Use());
  HVD_RETURN_IF_ERROR(ChoosePacking());
  StreamMemory moved(gpu(), stream());
  GpuOutputs outputs;
  Status launched = PrepareFlight(ready, &moved, &outputs);
  if (launched.ok()) {
    launched = LaunchCollectives(Lane(), options, *ready, outputs);
  }
  // Also after an error: parts of it may run, if only copies of values that
  // must be kept until they end.
  const Status recorded = gpu()->Record(stream(), &flight->end);
  if (!recorded.ok()) flight->end = nullptr;
  HVD_RETURN_IF_ERROR(launched);
  HVD_RETURN_IF_ERROR(recorded);
  flight->launched = Clock::now();  // it may have waited for others
  return TellOfEnd(*ready, flight->end);
}

// Every rank does so before its first launch.
Status GpuPlane::ChoosePacking() {
  if (packing_.has_value()) return Status::Ok();
  Packing chosen = Packing::kBatch;
  std::string times;
  HVD_RETURN_IF_ERROR(MeasurePacking(Lane(), collectives_, &chosen, &times));
  packing_ = chosen;
  if (options_.gpu.tells_packing && collectives_->rank() == 0 &&
      !times.empty()) {
    LogInfo(membership_->members().own_global_rank(),
            std::string("small tensors on GPUs are packed by '") +
                PackingName(chosen) + "' (HVD_GPU_PACKING): 64 took " + times);
  }
  return Status::Ok();
}

Status GpuPlane::TellOfEnd(const std::vector<ReadyRequest>& ready,
                           const std::shared_ptr<GpuEvent>& end) {
  for (const ReadyRequest& one : ready) {
    const Request& request = one.pending->request;
    if (one.is_neutral) continue;
    if (request.take_end == nullptr && request.gpu.done_in_stream_order) {
      HVD_RETURN_IF_ERROR(gpu()->Wait(request.gpu.stream, *end));
    }
    if (request.take_values != nullptr &&
        request.kind == CollectiveKind::kAlltoall) {
      HVD_RETURN_IF_ERROR(
          request.take_values(ReceivedRows(one, collectives_->rank())));
    }
  }
  for (const ReadyRequest& one : ready) {  // nothing can fail any more
    const Request& request = one.pending->request;
    if (!one.is_neutral && request.take_end != nullptr) request.take_end(end);
  }
  return Status::Ok();
}

Status GpuPlane::PrepareFlight(std::vector<ReadyRequest>* ready,
                               StreamMemory* moved, GpuOutputs* outputs) {
  HVD_RETURN_IF_ERROR(AllocateOutputs(*ready, collectives_->rank(),
                                      collectives_->size(), outputs));
  for (size_t i = 0; i < ready->size(); ++i) {
    ReadyRequest* one = &(*ready)[i];
    if (!one->is_neutral) continue;
    HVD_RETURN_IF_ERROR(MoveToGpu(one, moved));
    (*outputs)[i].assign(one->pending->request.tensors.size(), nullptr);
  }
  HVD_RETURN_IF_ERROR(Gate(*ready));
  return LendCommunicator(*ready);
}

// NCCL needs nothing to be in flight while `with_communicator` runs.
Status GpuPlane::LendCommunicator(const std::vector<ReadyRequest>& ready) {
  for (const ReadyRequest& one : ready) {
    const Request& request = one.pending->request;
    if (request.with_communicator == nullptr) continue;
    const GpuLane lane = Lane();
    while (HasFlights()) {
      HVD_RETURN_IF_ERROR(lane.look());
      Pause(1000);
    }
    HVD_RETURN_IF_ERROR(request.with_communicator(
        gpu(), lane.communicator, collectives_->rank(), lane.look));
  }
  return Status::Ok();
}

bool GpuPlane::HasFlights() {
  MutexLock lock(&mu_);
  return !flights_.empty();
}

// The neutral values of a rank that has joined were made in host memory.
Status GpuPlane::MoveToGpu(ReadyRequest* neutral, StreamMemory* moved) {
  for (RequestTensor& t : neutral->pending->request.tensors) {
    const size_t num_bytes = NumBytes(t);
    if (num_bytes == 0) continue;
    void* memory = nullptr;
    HVD_RETURN_IF_ERROR(moved->Allocate(
        num_bytes, "the neutral values of a rank that has joined", &memory));
    HVD_RETURN_IF_ERROR(
        gpu()->CopyAll({{memory, t.input, num_bytes}}, stream()));
    t.input = t.output = memory;
  }
  return Status::Ok();
}

// Makes our stream wait for the tensors. The request's stream may still use the
// memory of new outputs, so then we wait for that too.
Status GpuPlane::Gate(const std::vector<ReadyRequest>& ready) {
  for (const ReadyRequest& one : ready) {
    if (one.is_neutral) continue;
    const Request& request = one.pending->request;
    std::shared_ptr<GpuEvent> event = request.ready;
    if (request.allocate_output != nullptr) {
      HVD_RETURN_IF_ERROR(gpu()->Record(request.gpu.stream, &event));
    }
    HVD_RETURN_IF_ERROR(gpu()->Wait(stream(), *event));
  }
  return Status::Ok();
}

GpuLane GpuPlane::Lane() {
  GpuLane lane;
  lane.gpu = gpu();
  lane.stream = stream();
  lane.last_calls = connection_.tracks()->last_calls();
  lane.communicator = connection_.communicator();
  lane.look = MakeLook();
  lane.rank = collectives_->rank();
  lane.size = collectives_->size();
  lane.fusion_buffer = track_.fusion_buffer;
  lane.fusion_buffer_bytes = track_.fusion_buffer_bytes;
  lane.direct_bytes = static_cast<size_t>(options_.gpu.direct_bytes);
  lane.packing = packing_.value_or(Packing::kBatch);
  lane.scaler = connection_.scaler();
  lane.sums_in_switch = connection_.sums_in_switch();
  return lane;
}

Communicator::Look GpuPlane::MakeLook() {
  return [this, timeout = LaunchTimeout(), begin = Clock::now()]() -> Status {
    HVD_RETURN_IF_ERROR(connection_.Look());
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (timeout <= 0 || waited.count() < timeout) return Status::Ok();
    return Status::Stalled("a collective was not launched within " +
                           std::to_string(static_cast<int>(timeout)) + " s");
  };
}

void GpuPlane::End(const Status& why) {
  MutexLock lock(&mu_);
  if (!end_.ok()) return;
  end_ = why;
  changed_.NotifyOne();
}

Status GpuPlane::Poll() {
  if (!is_broken_.load()) return Status::Ok();
  MutexLock lock(&mu_);
  return broken_;
}

// ---- The thread that watches ----

void GpuPlane::Watch() {
  int num_looks = 0;
  bool has_gpu = false;
  Clock::time_point next_check{};
  while (AwaitWork()) {
    Status status;
    if (!has_gpu) {
      status = gpu()->Use();
      has_gpu = true;
    }
    Flight flight;
    if (status.ok() && TakeEnded(&flight, &status)) {
      num_looks = 0;
      if (!status.ok()) Fail(status);
      Land(std::move(flight), status);
      continue;
    }
    if (!status.ok() || Clock::now() >= next_check) {
      if (status.ok()) status = Diagnose();
      if (!status.ok()) Fail(status);
      next_check = Clock::now() + kCheckInterval;
    }
    Pause(num_looks++);
  }
}

bool GpuPlane::AwaitWork() {
  MutexLock lock(&mu_);
  while (flights_.empty()) {
    if (is_launching_ && !is_broken_.load() &&
        Clock::now() - launching_since_ > kIdleInterval) {
      return true;
    }
    if (!end_.ok() && !is_launching_) return false;
    if (launching_since_ == Clock::time_point{}) {
      changed_.Wait(&mu_);  // it has launched nothing so far
    } else {
      changed_.WaitFor(&mu_, kIdleInterval);
    }
  }
  return true;
}

bool GpuPlane::TakeEnded(Flight* flight, Status* status) {
  std::shared_ptr<GpuEvent> event;
  {
    MutexLock lock(&mu_);
    if (flights_.empty()) return false;
    event = flights_.front().end;
  }
  bool is_over = false;
  *status = event->Query(&is_over);
  if (!is_over) return false;
  MutexLock lock(&mu_);
  *flight = std::move(flights_.front());
  flights_.pop_front();
  if (status->ok()) *status = flight->status;
  return true;
}

double GpuPlane::LaunchTimeout() const {
  return kPatienceFactor * options_.stall_timeout_seconds;
}

Status GpuPlane::Diagnose() {
  const Clock::time_point now = Clock::now();
  Status end;
  Clock::time_point launched;
  {
    MutexLock lock(&mu_);
    end = end_;
    if (flights_.empty() && !is_launching_) return Status::Ok();
    launched = flights_.empty() ? launching_since_ : flights_.front().launched;
  }
  // A dead rank explains more than what NCCL or this rank says.
  Status trouble = membership_->CheckPeers();
  if (trouble.ok()) trouble = end;
  if (trouble.ok()) trouble = connection_.communicator()->CheckHealth();
  if (!trouble.ok()) {
    if (trouble_.ok()) trouble_since_ = now;
    // Keep the first lost rank: others leave because of it.
    if (trouble_.code() != StatusCode::kPeerLost) trouble_ = trouble;
    return now - trouble_since_ < kGrace ? Status::Ok() : trouble_;
  }
  const double timeout = LaunchTimeout();
  const std::chrono::duration<double> waited = now - launched;
  if (timeout <= 0 || waited.count() < timeout) return Status::Ok();
  return Status::Stalled("a collective on the GPU has not ended within " +
                         std::to_string(static_cast<int>(timeout)) +
                         " s of its launch");
}

// Ends the kernels, then the requests: their memory is in use until then. If
// NCCL hangs, the requests end all the same.
void GpuPlane::Fail(const Status& why) {
  TellOfLate(why);  // before anybody can use wrong results
  connection_.Abandon(why);
  std::deque<Flight> flights;
  {
    MutexLock lock(&mu_);
    broken_ = why;
    flights.swap(flights_);
  }
  is_broken_.store(true);
  const Clock::time_point end = Clock::now() + kAbortPatience;
  for (Flight& flight : flights) {
    bool is_over = false;
    while (!is_over && Clock::now() < end) {
      if (!flight.end->Query(&is_over).ok()) break;
      if (!is_over) Pause(1000);
    }
    Land(std::move(flight), why);
  }
  doorbell_->RingOwn();
}

// A later call fails too, but there may be none.
void GpuPlane::TellOfLate(const Status& why) {
  std::string first;  // what comes after it is wrong too
  {
    MutexLock lock(&mu_);
    for (const Flight& flight : flights_) {
      if (first.empty()) first = flight.ahead;
    }
  }
  if (first.empty()) return;
  std::fprintf(
      stderr,
      "[hvd_keras, rank %d] %s failed on the GPU after the program had "
      "continued: its results, and all that was computed from them, are "
      "wrong. %s\n",
      membership_->members().own_global_rank(), first.c_str(),
      why.message().c_str());
}

void GpuPlane::Land(Flight flight, const Status& status) {
  CallBack(std::move(flight.requests), status);
}

void GpuPlane::CallBack(std::vector<std::unique_ptr<PendingRequest>> requests,
                        const Status& status) {
  std::vector<Completion> completions;
  const int rank = membership_->members().own_global_rank();
  const Clock::time_point now = log_->Now();
  for (std::unique_ptr<PendingRequest>& pending : requests) {
    Finish(std::move(pending), status, now, rank, log_, &completions);
  }
  completions_.Push(std::move(completions));
}

}  // namespace hvd
