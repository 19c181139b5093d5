// A file of records: its bytes, and errors that tell where one is.
#pragma once

#include <cstdint>
#include <string>

#include "tf_ops/common/fd.h"
#include "tf_ops/common/status.h"

namespace hvd {

// Where a record begins.
struct RecordPlace {
  int64_t offset = 0;
  int64_t record = 0;  // its number in the file
};

// Any thread may call the const functions.
class LocalFile {
 public:
  // Returns InvalidArgument if there is no regular file that can be read.
  static Status Open(const std::string& path, LocalFile* file);

  // Has the system read no more than what is asked for. Else it reads ahead,
  // over a network too, what another rank asks for.
  void ReadExactly();

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  int64_t num_bytes() const { return num_bytes_; }

  Status Read(int64_t offset, int64_t size, char* bytes) const;
  Status Damaged(RecordPlace place, const char* what) const;

 private:
  std::string path_;
  Fd fd_;
  int64_t num_bytes_ = 0;
};

}  // namespace hvd
