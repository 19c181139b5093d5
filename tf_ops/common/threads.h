// How threads of the core are started, and what may go wrong.
#pragma once

#include <functional>
#include <thread>

#include "tf_ops/common/status.h"

namespace hvd {

// Starts a thread that gets no signals: they are for the main thread. Throws
// std::system_error if there are too many threads.
std::thread ThreadWithoutSignals(std::function<void()> body);

// Runs `work`, and returns Internal if the system refused it a thread.
//
// Only libhvd_core.so, where threads are started, may catch that: in the wheels
// each library has a C++ runtime of its own, and does not know the types of
// what another one throws.
Status CatchThreadLimit(const std::function<void()>& work);

}  // namespace hvd
