// Pages of 2 MB for large memory.
#pragma once

#include <cstddef>

namespace hvd {

// Asks for huge pages. A large output is mostly fresh memory, and Linux needs
// longer to map its pages of 4 KB than we need to reduce what they hold. It is
// advice: Linux may refuse it without harm.
void AdviseHugePages(void* memory, size_t num_bytes);

}  // namespace hvd
