// How threads of the core are started.
#pragma once

#include <functional>
#include <thread>

namespace hvd {

// Starts a thread that gets no signals: they are for the main thread. Throws
// std::system_error if there are too many threads.
std::thread ThreadWithoutSignals(std::function<void()> body);

}  // namespace hvd
