// Which training step a request belongs to.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

// Steps count from 1 on; 0: not known, which agrees with all.
using TrainingStep = uint32_t;

// Whether a call reduces gradients, so that the ranks' steps must be equal:
// hvd_keras/_gradients/reducer.py names it. Other calls may be made at any
// time, such as those of a thread that saves.
inline bool ReducesGradients(const std::string& name) {
  return name.find("/bucket_") != std::string::npos;
}

}  // namespace hvd
