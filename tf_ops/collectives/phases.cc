#include "tf_ops/collectives/phases.h"

namespace hvd {
namespace {

thread_local PhaseListener* listener_of_thread = nullptr;

}  // namespace

PhaseListener* PhaseListenerOfThread() { return listener_of_thread; }

void SetPhaseListenerOfThread(PhaseListener* listener) {
  listener_of_thread = listener;
}

}  // namespace hvd
