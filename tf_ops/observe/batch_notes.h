// What data pipelines note of the batches that pass through them, until Python
// takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd {

struct BatchNote {
  int64_t iteration = 0;  // over the data of its pipeline
  std::string text;
};

// Any thread may call these.
void AddBatchNote(int32_t pipeline, BatchNote note);

// Returns the notes since the last call, and drops them.
std::vector<BatchNote> TakeBatchNotes(int32_t pipeline);

}  // namespace hvd
