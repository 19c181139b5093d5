// Which requests run together as one collective over a list of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tf_ops/negotiation/message.h"

namespace hvd {

// Collects items into executions. Allreduces, reducescatters and broadcasts of
// one dtype fuse up to the threshold if they have the same kind, device, dtype,
// op, scale, wire format and root. An item that does not fit begins another
// execution; later ones may still join the first. A group is one item and is
// never split.
class FusionPlan {
 public:
  explicit FusionPlan(int64_t threshold_bytes)
      : threshold_bytes_(threshold_bytes) {}

  // `divisor`: see Execution.
  void Add(ResponseItem item, std::shared_ptr<const RequestParams> params,
           int32_t divisor);
  std::vector<Execution> Take();

 private:
  struct Group {
    std::shared_ptr<const RequestParams> like;  // of its first item
    int64_t num_bytes = 0;
    bool open = false;  // others may join
    Execution execution;
  };

  const int64_t threshold_bytes_;
  std::vector<Group> groups_;
};

}  // namespace hvd
