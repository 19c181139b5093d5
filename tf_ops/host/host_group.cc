#include "tf_ops/host/host_group.h"

#include <utility>

namespace hvd {

HostGroup::HostGroup(std::shared_ptr<void> memory, int rank, uint64_t epoch)
    : memory_(std::move(memory)),
      doorbell_(RegionView(memory_.get()), rank),
      crowd_(RegionView(memory_.get())),
      membership_(RegionView(memory_.get()), rank, epoch, &doorbell_),
      control_(RegionView(memory_.get()), rank, &membership_, &doorbell_),
      slabs_(RegionView(memory_.get()), rank, &membership_) {}

void HostGroup::set_wait_timeout(std::chrono::milliseconds timeout) {
  control_.set_wait_timeout(timeout);
  slabs_.set_wait_timeout(timeout);
}

}  // namespace hvd
