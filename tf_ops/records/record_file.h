// A TFRecord file without compression: where its records begin, and single
// records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/records/local_file.h"

namespace hvd {

// Enough to find any record of a file after a look at few headers.
struct RecordIndex {
  int64_t file_bytes = 0;  // without what is lost
  int64_t num_records = 0;
  uint32_t first_checksum = 0;  // of the data of the first record; 0: none
  // The first record of each block: of 1 MB, and of 4 records, at least. So
  // they take 16 bytes a MB, and 4 a record, at most.
  std::vector<RecordPlace> blocks;
  // Adds a block if the next record, which begins at `offset`, begins one.
  void See(int64_t offset);
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

  int64_t num_bytes() const { return file_.num_bytes(); }

  // Reads the headers of the records in [from.offset, end); tells where each
  // record begins, and how long its data are. Returns DamagedFile if a length
  // is not what was written, or the file ends before a record does.
  using See = std::function<void(int64_t offset, int64_t data_bytes)>;
  Status ReadHeaders(RecordPlace from, int64_t end, const See& see) const;

  // Has the system read a record from its disk, without waiting for it. If
  // `exactly`, it reads nothing else, as is best for rows that follow on each
  // other: another rank reads the next ones. Else it may read ahead.
  void Prefetch(RecordPlace place, int64_t data_bytes, bool exactly) const;

  // Reads the data of a record into `data`. Returns DamagedFile if they are
  // not what was written.
  Status Read(RecordPlace place, int64_t data_bytes, bool exactly,
              char* data) const;

  // A check reads all data too, and tells what is damaged instead of failing.
  Status MakeIndex(bool check, RecordIndex* index) const;

 private:
  RecordFile(LocalFile file, LocalFile exact)
      : file_(std::move(file)), exact_(std::move(exact)) {}

  const LocalFile file_, exact_;
};

}  // namespace hvd
