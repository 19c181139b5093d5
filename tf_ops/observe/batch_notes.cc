#include "tf_ops/observe/batch_notes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

constexpr int64_t kFirstLoop = int64_t{1} << 32;
constexpr int kMostOfLoop = 16;

struct Store {
  Mutex mutex;
  std::map<int32_t, std::vector<BatchNote>> by_pipeline GUARDED_BY(mutex);
};

// Threads of tf.data may run while the process ends.
Store* TheStore() {
  static Store* const store = new Store;
  return store;
}

}  // namespace

void AddBatchNote(int32_t pipeline, BatchNote note) {
  Store* const store = TheStore();
  const MutexLock lock(&store->mutex);
  std::vector<BatchNote>* const notes = &store->by_pipeline[pipeline];
  if (note.iteration >= kFirstLoop) {
    const auto is_of_it = [&](const BatchNote& one) {
      return one.iteration == note.iteration;
    };
    const auto count = std::count_if(notes->begin(), notes->end(), is_of_it);
    if (count >= kMostOfLoop) return;
  }
  notes->push_back(std::move(note));
}

std::vector<BatchNote> TakeBatchNotes(int32_t pipeline) {
  Store* const store = TheStore();
  const MutexLock lock(&store->mutex);
  const auto found = store->by_pipeline.find(pipeline);
  if (found == store->by_pipeline.end()) return {};
  std::vector<BatchNote> notes = std::move(found->second);
  store->by_pipeline.erase(found);
  return notes;
}

}  // namespace hvd
