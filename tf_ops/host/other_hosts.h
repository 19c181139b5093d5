// What the ranks of one host know of those on other hosts.
#pragma once

#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/region.h"

namespace hvd {

// What one member notes, all of the region hear. Any thread may call it.
class OtherHosts {
 public:
  // Borrows `doorbell`.
  OtherHosts(RegionView region, Doorbell* doorbell)
      : region_(region), doorbell_(doorbell) {}

  // A rank there has left in peace, or is lost; the first reason of each stays.
  void NoteLeft(const std::string& reason);
  void NoteLost(const std::string& reason);
  // PeerLost with that reason, or ok.
  Status CheckLeft() const;
  Status CheckLost() const;

  // The network has come apart; the ranks here must end and write nothing.
  void NoteMinority() { region_.header()->is_minority.store(1); }
  bool IsMinority() const { return region_.header()->is_minority.load() != 0; }

 private:
  void Note(const std::string& reason, Words* words);

  const RegionView region_;
  Doorbell* const doorbell_;
};

}  // namespace hvd
