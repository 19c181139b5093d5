#include "tf_ops/records/record_source.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr size_t kMostOpened = 64;
constexpr size_t kMostOffsets = 8 << 20;  // 32 MiB
constexpr int64_t kNumberMask = (int64_t{1} << RecordSource::kNumberBits) - 1;

struct Sources {
  Mutex mutex;
  std::map<int32_t, std::shared_ptr<RecordSource>> by_id GUARDED_BY(mutex);
  int32_t next_id GUARDED_BY(mutex) = 0;
};

// Threads of tf.data may run while the process ends.
Sources* TheSources() {
  static Sources* const sources = new Sources;
  return sources;
}

}  // namespace

RecordSource::RecordSource(std::vector<File> files) : files_(std::move(files)) {
  int64_t begin = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    begins_.push_back(begin);
    by_path_.emplace(files_[i].path, i);
    begin += files_[i].index.num_records;
  }
}

Status RecordSource::Find(std::string_view path, int64_t* first,
                          int64_t* count) const {
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) {
    return Status::InvalidArgument(std::string(path) +
                                   " is none of the files of this dataset.");
  }
  const File& file = files_[found->second];
  *first = (int64_t{file.fingerprint} << kNumberBits) + begins_[found->second];
  *count = file.index.num_records;
  return Status::Ok();
}

Status RecordSource::Locate(int64_t number, Record* found) {
  number &= kNumberMask;
  // Files without records begin where the next one does.
  const size_t file = std::upper_bound(begins_.begin(), begins_.end(), number) -
                      begins_.begin() - 1;
  const RecordIndex& index = files_[file].index;
  const int64_t record = number - begins_[file];
  if (record >= index.num_records) {
    return Status::InvalidArgument("There is no record " +
                                   std::to_string(number) + ".");
  }
  const auto next = std::upper_bound(
      index.blocks.begin(), index.blocks.end(), record,
      [](int64_t one, const RecordPlace& other) { return one < other.record; });
  const size_t block = next - index.blocks.begin() - 1;
  HVD_RETURN_IF_ERROR(Open(file, &found->file));
  Offsets offsets;
  HVD_RETURN_IF_ERROR(OffsetsOf({file, block}, *found->file, &offsets));
  const RecordPlace& begin = index.blocks[block];
  const size_t place = record - begin.record;
  found->place = {begin.offset + (*offsets)[place], record};
  found->data_bytes =
      (*offsets)[place + 1] - (*offsets)[place] - RecordFile::kFrameBytes;
  return Status::Ok();
}

Status RecordSource::Open(size_t file,
                          std::shared_ptr<const RecordFile>* opened) {
  const MutexLock lock(&mutex_);
  const auto found = opened_.find(file);
  if (found != opened_.end()) {
    *opened = found->second;
    return Status::Ok();
  }
  std::unique_ptr<RecordFile> made;
  HVD_RETURN_IF_ERROR(RecordFile::Open(files_[file].path, &made));
  // Records may have been appended.
  if (made->num_bytes() < files_[file].index.file_bytes) {
    return Status::DamagedFile(files_[file].path +
                               " has become shorter since it was given to "
                               "`hvd.shard`");
  }
  if (opened_.size() == kMostOpened) {
    opened_.erase(opened_order_.front());
    opened_order_.pop_front();
  }
  *opened = opened_[file] = std::move(made);
  opened_order_.push_back(file);
  return Status::Ok();
}

Status RecordSource::OffsetsOf(BlockId id, const RecordFile& file,
                               Offsets* offsets) {
  {
    const MutexLock lock(&mutex_);
    const auto found = known_.find(id);
    if (found != known_.end()) {
      *offsets = found->second;
      return Status::Ok();
    }
  }
  const RecordIndex& index = files_[id.first].index;
  const RecordPlace begin = index.blocks[id.second];
  const bool is_last = id.second + 1 == index.blocks.size();
  const RecordPlace end = is_last
                              ? RecordPlace{index.file_bytes, index.num_records}
                              : index.blocks[id.second + 1];
  auto made = std::make_shared<std::vector<uint32_t>>();
  made->reserve(end.record - begin.record + 1);
  made->push_back(0);
  const auto see = [&](int64_t offset, int64_t data_bytes) {
    made->push_back(static_cast<uint32_t>(
        offset + data_bytes + RecordFile::kFrameBytes - begin.offset));
  };
  HVD_RETURN_IF_ERROR(file.ReadHeaders(begin, end.offset, see));
  if (made->size() != static_cast<size_t>(end.record - begin.record + 1) ||
      made->back() != end.offset - begin.offset) {
    return Status::DamagedFile(
        files_[id.first].path +
        " has changed since it was given to `hvd.shard`");
  }
  *offsets = made;
  const MutexLock lock(&mutex_);
  if (!known_.emplace(id, *offsets).second) return Status::Ok();
  known_order_.push_back(id);
  num_known_ += made->size();
  while (num_known_ > kMostOffsets && known_order_.size() > 1) {
    const auto oldest = known_.find(known_order_.front());
    num_known_ -= oldest->second->size();
    known_.erase(oldest);
    known_order_.pop_front();
  }
  return Status::Ok();
}

int32_t AddRecordSource(std::vector<RecordSource::File> files) {
  auto source = std::make_shared<RecordSource>(std::move(files));
  Sources* const sources = TheSources();
  const MutexLock lock(&sources->mutex);
  sources->by_id[sources->next_id] = std::move(source);
  return sources->next_id++;
}

void RemoveRecordSource(int32_t id) {
  std::shared_ptr<RecordSource> source;  // ends outside the lock
  Sources* const sources = TheSources();
  const MutexLock lock(&sources->mutex);
  const auto found = sources->by_id.find(id);
  if (found == sources->by_id.end()) return;
  source = std::move(found->second);
  sources->by_id.erase(found);
}

std::shared_ptr<RecordSource> FindRecordSource(int32_t id) {
  Sources* const sources = TheSources();
  const MutexLock lock(&sources->mutex);
  const auto found = sources->by_id.find(id);
  return found == sources->by_id.end() ? nullptr : found->second;
}

}  // namespace hvd
