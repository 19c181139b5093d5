// The timeline of this process.
#pragma once

#include <memory>

#include "tf_ops/observe/timeline_recorder.h"

namespace hvd {

// The one recorder, for all engines of this process. Never destroyed.
const std::shared_ptr<TimelineRecorder>& TheTimeline();

}  // namespace hvd
