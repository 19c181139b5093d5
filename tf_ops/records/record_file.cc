#include "tf_ops/records/record_file.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/records/crc32c.h"

namespace hvd {
namespace {

// A record: the length of its data, a checksum of that, the data, theirs.
struct __attribute__((packed)) Header {
  uint64_t data_bytes;
  uint32_t checksum;
};
constexpr int64_t kHeaderBytes = sizeof(Header);
static_assert(RecordFile::kFrameBytes == kHeaderBytes + sizeof(uint32_t));

constexpr int64_t kBlockBytes = 1 << 20, kBlockRecords = 4;
// So an offset in a block has 32 bits.
constexpr int64_t kMostDataBytes = (1 << 30) - kBlockBytes;
// It takes less time to copy a record of this size than to call the system.
constexpr int64_t kSmallBytes = 2048;
constexpr int64_t kWindowBytes = 1 << 16;

}  // namespace

void RecordIndex::See(int64_t offset) {
  const int64_t record = num_records++;
  if (blocks.empty() || (offset - blocks.back().offset >= kBlockBytes &&
                         record - blocks.back().record >= kBlockRecords)) {
    blocks.push_back({offset, record});
  }
}

Status RecordFile::Open(const std::string& path,
                        std::unique_ptr<RecordFile>* file) {
  LocalFile opened, exact;
  HVD_RETURN_IF_ERROR(LocalFile::Open(path, &opened));
  HVD_RETURN_IF_ERROR(LocalFile::Open(path, &exact));
  exact.ReadExactly();
  file->reset(new RecordFile(std::move(opened), std::move(exact)));
  return Status::Ok();
}

Status RecordFile::ReadHeaders(RecordPlace from, int64_t end,
                               const See& see) const {
  std::vector<char> window(kWindowBytes);
  int64_t window_begin = 0, window_end = 0, last_bytes = kSmallBytes;
  for (RecordPlace place = from; place.offset < end; ++place.record) {
    const int64_t left = num_bytes() - place.offset;
    if (left < kFrameBytes) return file_.Damaged(place, "the file ends in it");
    if (place.offset + kHeaderBytes > window_end) {
      const int64_t ahead =
          last_bytes < kSmallBytes ? kWindowBytes : kHeaderBytes;
      window_begin = place.offset;
      window_end = window_begin + std::min(ahead, left);
      HVD_RETURN_IF_ERROR(
          file_.Read(window_begin, window_end - window_begin, window.data()));
    }
    Header header;
    std::memcpy(&header, window.data() + (place.offset - window_begin),
                sizeof(header));
    if (MaskedCrc32c(&header.data_bytes, sizeof(header.data_bytes)) !=
        header.checksum) {
      return file_.Damaged(place, "its length does not match its checksum");
    }
    if (header.data_bytes > static_cast<uint64_t>(left - kFrameBytes)) {
      return file_.Damaged(place, "the file ends in it");
    }
    last_bytes = static_cast<int64_t>(header.data_bytes);
    see(place.offset, last_bytes);
    place.offset += last_bytes + kFrameBytes;
  }
  return Status::Ok();
}

void RecordFile::Prefetch(RecordPlace place, int64_t data_bytes,
                          bool exactly) const {
  posix_fadvise((exactly ? exact_ : file_).fd(), place.offset,
                data_bytes + kFrameBytes, POSIX_FADV_WILLNEED);
}

Status RecordFile::Read(RecordPlace place, int64_t data_bytes, bool exactly,
                        char* data) const {
  const LocalFile& file = exactly ? exact_ : file_;
  Header header;
  uint32_t checksum = 0;
  iovec parts[] = {{&header, kHeaderBytes},
                   {data, static_cast<size_t>(data_bytes)},
                   {&checksum, sizeof(checksum)}};
  const int64_t size = data_bytes + kFrameBytes;
  if (preadv(file.fd(), parts, 3, place.offset) != size) {
    // Interrupted, or more than one call can read.
    HVD_RETURN_IF_ERROR(file.Read(place.offset, kHeaderBytes,
                                  reinterpret_cast<char*>(&header)));
    HVD_RETURN_IF_ERROR(
        file.Read(place.offset + kHeaderBytes, data_bytes, data));
    HVD_RETURN_IF_ERROR(file.Read(place.offset + kHeaderBytes + data_bytes,
                                  sizeof(checksum),
                                  reinterpret_cast<char*>(&checksum)));
  }
  if (header.data_bytes != static_cast<uint64_t>(data_bytes) ||
      MaskedCrc32c(&header.data_bytes, sizeof(header.data_bytes)) !=
          header.checksum) {
    return file.Damaged(place, "its length is not that of the index");
  }
  if (MaskedCrc32c(data, data_bytes) != checksum) {
    return file.Damaged(place, "its data do not match their checksum");
  }
  return Status::Ok();
}

Status RecordFile::MakeIndex(bool check, RecordIndex* index) const {
  std::vector<char> data;
  int64_t first_end = 0, most_bytes = 0, end = 0;
  const auto see = [&](int64_t offset, int64_t data_bytes) {
    const int64_t record = index->num_records;
    index->See(offset);
    end = offset + data_bytes + kFrameBytes;
    if (record == 0) first_end = end;
    most_bytes = std::max(most_bytes, data_bytes);
    if (!check || data_bytes > kMostDataBytes) return;
    data.resize(data_bytes);
    if (!Read({offset, record}, data_bytes, false, data.data()).ok()) {
      index->damaged.push_back(record);
    }
  };
  const Status status = ReadHeaders({}, num_bytes(), see);
  if (!check || status.code() != StatusCode::kDamagedFile) {
    HVD_RETURN_IF_ERROR(status);
  }
  if (most_bytes > kMostDataBytes) {
    return Status::InvalidArgument(file_.path() + ": a record is too long");
  }
  index->file_bytes = end;
  index->lost_bytes = num_bytes() - end;
  if (first_end == 0) return Status::Ok();
  return file_.Read(first_end - sizeof(uint32_t), sizeof(uint32_t),
                    reinterpret_cast<char*>(&index->first_checksum));
}

}  // namespace hvd
