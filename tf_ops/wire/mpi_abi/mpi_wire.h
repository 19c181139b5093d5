// Bytes between hosts by MPI, opened at run time: any library of the standard
// ABI, such as the one in the wheel of MPICH.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/wire/mpi_abi/mpi_api.h"
#include "tf_ops/wire/wire.h"

namespace hvd {

// MPI in this process, which must not have begun it: one rank for each host.
// It never ends MPI: the process ends without saying goodbye to the others.
class MpiWorld {
 public:
  // Loads `path` and begins MPI. The environment tells MPI who it is.
  static Status Begin(const std::string& path,
                      std::unique_ptr<MpiWorld>* world);
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& version() const { return version_; }
  const MpiApi& api() const { return api_; }

  // Ok, or Internal with MPI's words.
  Status AsStatus(int error, const std::string& what) const;

 private:
  MpiWorld() = default;

  MpiApi api_;
  int rank_ = 0;
  int size_ = 1;
  std::string version_;
};

// The hosts of one process set. Sets with different `set_number` do not
// disturb each other; several threads may each use one of their own.
// `ranks`: of each host in `world`, which is borrowed.
std::unique_ptr<Wire> MakeMpiWire(const MpiWorld* world, int set_number,
                                  std::vector<int> ranks);

// MPI allows tags up to 32767 at least.
inline constexpr int kMaxSetNumber = 32768 / kNumWireTags - 1;

}  // namespace hvd
