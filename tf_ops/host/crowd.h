// Whether the ranks have many requests in flight.
#pragma once

#include "tf_ops/host/region.h"

namespace hvd {

// is_crowded is for any thread, Set for one at a time.
class Crowd {
 public:
  explicit Crowd(RegionView region) : region_(region) {}
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Whether any rank has many: then calls are independent, and it pays to
  // gather them and run them as one.
  bool is_crowded() const { return region_.header()->num_crowded.load() > 0; }

  // Whether this rank has many.
  void Set(bool crowded) {
    if (crowded == crowded_) return;
    crowded_ = crowded;
    region_.header()->num_crowded.fetch_add(crowded ? 1u : -1u);
  }

 private:
  const RegionView region_;
  bool crowded_ = false;
};

}  // namespace hvd
