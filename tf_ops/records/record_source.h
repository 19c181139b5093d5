// The records of several files, by their numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/records/record_file.h"

namespace hvd {

// Any thread may call it.
class RecordSource {
 public:
  struct File {
    std::string path;
    // Goes into the upper bits of its records' numbers, so that numbers of
    // other data differ.
    uint32_t fingerprint = 0;
    RecordIndex index;
  };
  static constexpr int kNumberBits = 40, kFingerprintBits = 23;

  explicit RecordSource(std::vector<File> files);

  // Tells the numbers of a file's records: [*first, *first + *count).
  Status Find(std::string_view path, int64_t* first, int64_t* count) const;

  struct Record {
    std::shared_ptr<const RecordFile> file;
    RecordPlace place;
    int64_t data_bytes = 0;
  };
  // Tells where the record of a number is.
  Status Locate(int64_t number, Record* record);

 private:
  // Where the records of a block begin in it, and where the last one ends.
  using Offsets = std::shared_ptr<const std::vector<uint32_t>>;
  using BlockId = std::pair<size_t, size_t>;  // file, block

  Status Open(size_t file, std::shared_ptr<const RecordFile>* opened)
      EXCLUDES(mutex_);
  Status OffsetsOf(BlockId id, const RecordFile& file, Offsets* offsets)
      EXCLUDES(mutex_);

  const std::vector<File> files_;
  std::vector<int64_t> begins_;  // numbers of the files' first records
  std::unordered_map<std::string_view, size_t> by_path_;

  Mutex mutex_;
  // The files and blocks that were used last, up to a limit.
  std::map<size_t, std::shared_ptr<const RecordFile>> opened_
      GUARDED_BY(mutex_);
  std::deque<size_t> opened_order_ GUARDED_BY(mutex_);
  std::map<BlockId, Offsets> known_ GUARDED_BY(mutex_);
  std::deque<BlockId> known_order_ GUARDED_BY(mutex_);
  size_t num_known_ GUARDED_BY(mutex_) = 0;  // offsets
};

// Sources by their numbers in this process. Any thread may call these.
int32_t AddRecordSource(std::vector<RecordSource::File> files);
void RemoveRecordSource(int32_t id);
// Returns null if it was removed.
std::shared_ptr<RecordSource> FindRecordSource(int32_t id);

}  // namespace hvd
