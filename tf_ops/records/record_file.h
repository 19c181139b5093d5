// A TFRecord file without compression: where its records begin, and single
// records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/status.h"

namespace hvd {

// Where a record begins.
struct RecordPlace {
  int64_t offset = 0;
  int64_t record = 0;  // its number in the file
};

// Enough to find any record of a file after a look at few headers.
struct RecordIndex {
  int64_t file_bytes = 0;  // without what is lost
  int64_t num_records = 0;
  uint32_t first_checksum = 0;  // of the data of the first record; 0: none
  // The first record of each block: of 1 MB, and of 4 records, at least. So
  // they take 16 bytes a MB, and 4 a record, at most.
  std::vector<RecordPlace> blocks;
  // Only of a check: records whose data are damaged, and what is left of the
  // file where a length is, or where it ends too soon.
  std::vector<int64_t> damaged;
  int64_t lost_bytes = 0;
};

// Any thread may call the const functions.
class RecordFile {
 public:
  static constexpr int64_t kFrameBytes = 16;  // of a record, without its data

  // Returns InvalidArgument if there is no regular file that can be read.
  static Status Open(const std::string& path,
                     std::unique_ptr<RecordFile>* file);

  int64_t num_bytes() const { return num_bytes_; }

  // Reads the headers of the records in [from.offset, end); tells where each
  // record begins, and how long its data are. Returns DamagedFile if a length
  // is not what was written, or the file ends before a record does.
  using See = std::function<void(int64_t offset, int64_t data_bytes)>;
  Status ReadHeaders(RecordPlace from, int64_t end, const See& see) const;

  // Has the system read a record from its disk, without waiting for it.
  void Prefetch(RecordPlace place, int64_t data_bytes) const;

  // Reads the data of a record into `data`. Returns DamagedFile if they are
  // not what was written.
  Status Read(RecordPlace place, int64_t data_bytes, char* data) const;

  // A check reads all data too, and tells what is damaged instead of failing.
  Status MakeIndex(bool check, RecordIndex* index) const;

 private:
  RecordFile(std::string path, Fd fd, int64_t num_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), num_bytes_(num_bytes) {}

  Status ReadBytes(int64_t offset, int64_t size, char* bytes) const;
  Status Damaged(RecordPlace place, const char* what) const;

  const std::string path_;
  const Fd fd_;
  const int64_t num_bytes_;
};

}  // namespace hvd
