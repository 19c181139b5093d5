// What data pipelines note of the batches that pass through them, until Python
// takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd {

struct BatchNote {
  // Over the data of its pipeline. From 2^32 on they are loops of the user's,
  // which may be long: of each, the first 16 notes are kept.
  int64_t iteration = 0;
  std::string text;
};

// Any thread may call these.
void AddBatchNote(int32_t pipeline, BatchNote note);

// Returns the notes since the last call, and drops them.
std::vector<BatchNote> TakeBatchNotes(int32_t pipeline);

}  // namespace hvd
