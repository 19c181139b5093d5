// A tar without compression, as WebDataset has it: the members that follow each
// other and share a key are a record.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/records/local_file.h"
#include "tf_ops/records/record_file.h"

namespace hvd {

struct TarMember {
  int64_t begin = 0;   // of its header, or of what describes it
  int64_t offset = 0;  // of its data
  int64_t num_bytes = 0;
  std::string key, suffix;  // of its path, without the first dot of its name
};

struct TarRow {
  int64_t begin = 0, end = 0;
  std::vector<TarMember> members;
};

// Any thread may call the const functions.
class TarFile {
 public:
  static Status Open(const std::string& path, std::unique_ptr<TarFile>* file);

  // Reads headers from that of a record on; gives each record until `see`
  // returns false. Returns DamagedFile if a header is not what was written, or
  // the file ends before a member does.
  using See = std::function<bool(TarRow row)>;
  Status ReadRows(RecordPlace from, const See& see) const;

  // A check counts what is lost, instead of failing.
  Status MakeIndex(bool check, RecordIndex* index) const;

 private:
  class Headers;

  explicit TarFile(LocalFile file) : file_(std::move(file)) {}

  const LocalFile file_;
};

}  // namespace hvd
