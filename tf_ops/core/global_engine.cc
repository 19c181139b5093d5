// The process's engine. Its holder is never destroyed: kernels may still run
// while the process ends.
#include <unistd.h>

#include <utility>

#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/core/engine.h"

namespace hvd {
namespace {

struct Holder {
  Mutex mu;
  std::shared_ptr<Engine> engine GUARDED_BY(mu);
  pid_t owner GUARDED_BY(mu) = 0;
};

Holder& GlobalHolder() {
  static Holder* const holder = new Holder();
  return *holder;
}

}  // namespace

std::shared_ptr<Engine> SetGlobalEngine(std::shared_ptr<Engine> engine) {
  Holder& holder = GlobalHolder();
  MutexLock lock(&holder.mu);
  holder.engine.swap(engine);
  holder.owner = getpid();
  return engine;
}

std::shared_ptr<Engine> GlobalEngine() {
  Holder& holder = GlobalHolder();
  MutexLock lock(&holder.mu);
  return holder.engine;
}

void SubmitGlobal(Request request) {
  std::shared_ptr<Engine> engine;
  bool forked;
  {
    Holder& holder = GlobalHolder();
    MutexLock lock(&holder.mu);
    engine = holder.engine;
    forked = engine != nullptr && holder.owner != getpid();
  }
  if (engine == nullptr || forked) {
    const std::string what = std::string(CollectiveKindName(request.kind)) +
                             " '" + request.name + "': ";
    request.done(Status::NotInitialized(
        what + (forked ? "this process was forked from one that had called "
                         "hvd.init(); it is not a rank"
                       : "call hvd.init() first")));
    return;
  }
  engine->Submit(std::move(request));
}

}  // namespace hvd
