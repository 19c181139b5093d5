// Objects that outlive their owner.
#pragma once

#include <memory>

namespace hvd {

// Keeps an object until the process ends, because somebody may still use it.
// Thread-safe.
void KeepForever(std::shared_ptr<const void> object);

}  // namespace hvd
