// The engine: takes requests from any thread, agrees with the other ranks on
// an order, runs the collectives and calls back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/options.h"
#include "tf_ops/engine/stats.h"
#include "tf_ops/host/host_layout.h"
#include "tf_ops/negotiation/request.h"
#include "tf_ops/wire/control_links.h"

namespace hvd {

class HostGroup;
class Membership;

// Thread-safe. A process has one for each process set that it belongs to.
class Engine {
 public:
  virtual ~Engine() = default;

  // Never throws; `request.done` gets the outcome. The calling thread may run a
  // small collective that all ranks have submitted, and waits for them in it.
  virtual void Submit(Request request) = 0;

  // Leaves the job: pending requests fail with kShutdown, peers are told
  // `reason`. Idempotent; returns when the engine's threads have ended.
  virtual void Shutdown(const std::string& reason) = 0;

  // Ends the engine of a process set that all its ranks remove. Pending
  // requests fail with kShutdown and `reason`; peers are told nothing, since
  // they remove the set too. Otherwise as Shutdown.
  virtual void Remove(const std::string& reason) = 0;

  // Sets what the peers are told if this process ends without Shutdown.
  virtual void NoteExitReason(const std::string& reason) = 0;
  // See Membership::NoteFailure.
  virtual void NoteFailure(const std::string& reason) = 0;

  // Whether a request of this name is in flight; nullopt if the engine was
  // busy for all of `patience`.
  virtual std::optional<bool> IsInFlight(
      const std::string& name, std::chrono::milliseconds patience) = 0;

  virtual int rank() const = 0;  // in the process set
  virtual int size() const = 0;
  virtual EngineStats stats() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual std::shared_ptr<Membership> membership() const = 0;

  // If the ranks are on several hosts: `layout` says where they are, the region
  // of `group` has a wire, and its member 0 has `links`.
  static std::unique_ptr<Engine> Create(
      std::shared_ptr<HostGroup> group, const EngineOptions& options,
      const HostLayout& layout = {},
      std::unique_ptr<ControlLinks> links = nullptr);
};

}  // namespace hvd
