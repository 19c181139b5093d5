// Which side of a network that has come apart may go on.
#pragma once

#include <vector>

namespace hvd {

// Whether ranks that have lost `lost`, of the `size` ranks of the job, may go
// on: more than half of all are left, or half of all with rank 0.
bool MayGoOn(const std::vector<int>& lost, int size);

}  // namespace hvd
