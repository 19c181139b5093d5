// Everything that one rank shares with the other ranks of its host.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "tf_ops/host/control_channel.h"
#include "tf_ops/host/crowd.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/host/membership.h"
#include "tf_ops/host/region.h"

namespace hvd {

// While alive, tells a Membership who has died.
class DeathWatch {
 public:
  virtual ~DeathWatch() = default;
};

// Owns the roles of one rank. Users take only the roles they need; each role
// says which threads may call it. shm/ and in_memory/ make groups.
class HostGroup {
 public:
  // `memory` holds an initialised region; see Membership for `epoch`.
  HostGroup(std::shared_ptr<void> memory, int rank, uint64_t epoch);
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int rank() const { return membership_.members().rank(); }
  int size() const { return membership_.members().size(); }

  HostSlabs* slabs() { return &slabs_; }
  ControlChannel* control() { return &control_; }
  Doorbell* doorbell() { return &doorbell_; }
  Crowd* crowd() { return &crowd_; }
  Membership* membership() { return &membership_; }

  // Before any other thread uses the group:
  void set_wait_timeout(std::chrono::milliseconds timeout);  // 0: for ever
  void set_wait_warning(std::chrono::milliseconds after) {   // 0: never
    slabs_.set_wait_warning(after);
  }
  void KeepWatch(std::unique_ptr<DeathWatch> watch) {
    watch_ = std::move(watch);
  }

 private:
  const std::shared_ptr<void> memory_;
  Doorbell doorbell_;
  Crowd crowd_;
  Membership membership_;
  ControlChannel control_;
  HostSlabs slabs_;
  std::unique_ptr<DeathWatch> watch_;  // last: it uses the membership
};

}  // namespace hvd
