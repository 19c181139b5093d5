#include "tf_ops/wire/majority.h"

#include <algorithm>

namespace hvd {

bool MayGoOn(const std::vector<int>& lost, int size) {
  const int twice_left = 2 * (size - static_cast<int>(lost.size()));
  const bool has_first = std::find(lost.begin(), lost.end(), 0) == lost.end();
  return twice_left > size || (twice_left == size && has_first);
}

}  // namespace hvd
