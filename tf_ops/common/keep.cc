#include "tf_ops/common/keep.h"

#include <utility>
#include <vector>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {

void KeepForever(std::shared_ptr<const void> object) {
  // Never destroyed, not even when the process ends. Tools that look for leaks
  // reach the objects from here.
  static auto* const mu = new Mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const MutexLock lock(mu);
  kept->push_back(std::move(object));
}

}  // namespace hvd
