#include "tf_ops/observe/timeline.h"

namespace hvd {

const std::shared_ptr<TimelineRecorder>& TheTimeline() {
  static const auto* const timeline = new std::shared_ptr<TimelineRecorder>(
      std::make_shared<TimelineRecorder>());
  return *timeline;
}

}  // namespace hvd
