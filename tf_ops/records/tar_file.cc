#include "tf_ops/records/tar_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace hvd {
namespace {

constexpr int64_t kTarHeaderBytes = 512;  // data are padded to as many
// It takes less time to copy a member of this size than to call the system.
constexpr int64_t kSmallMemberBytes = 1 << 13;
constexpr int64_t kTarWindowBytes = 1 << 16;
// Of a text that describes a member.
constexpr int64_t kMostTextBytes = 1 << 20;

int64_t Padded(int64_t size) {
  return (size + kTarHeaderBytes - 1) / kTarHeaderBytes * kTarHeaderBytes;
}

std::string_view UpTo(std::string_view text, char end) {
  return text.substr(0, text.find(end));
}

// An octal number, or a large one in base 256; negative: none.
int64_t ParseNumber(std::string_view field) {
  int64_t number = 0;
  if (static_cast<unsigned char>(field[0]) & 0x80) {
    for (const unsigned char byte : field.substr(1)) {
      if (number >> 54 != 0) return -1;
      number = number << 8 | byte;
    }
    return number;
  }
  const std::string_view blank(" \0", 2);
  const size_t begin = std::min(field.find_first_not_of(blank), field.size());
  field.remove_prefix(begin);
  field = field.substr(0, field.find_last_not_of(blank) + 1);
  for (const char digit : field) {
    if (digit < '0' || digit > '7') return -1;
    number = number << 3 | (digit - '0');
  }
  return number;
}

bool HasChecksum(std::string_view header, int64_t total) {
  const std::string_view field = header.substr(148, 8);
  for (const unsigned char byte : field) total -= byte;
  return ParseNumber(field) == total + 256;
}

std::string NameIn(std::string_view header) {
  std::string name(UpTo(header.substr(0, 100), '\0'));
  if (header[345] != '\0' &&
      header.substr(257, 6) == std::string_view("ustar\0", 6)) {
    name.insert(0, std::string(UpTo(header.substr(345, 155), '\0')) + "/");
  }
  return name;
}

// What a text tells of the member behind it.
struct Told {
  std::optional<std::string> path;
  std::optional<int64_t> size;

  bool is_empty() const { return !path && !size; }

  // Takes one of pax: lines of "LENGTH NAME=VALUE".
  void TakePax(std::string_view text) {
    while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
      size_t length = 0, place = 0;
      for (; place < text.size() && text[place] >= '0' && text[place] <= '9';
           ++place) {
        length = std::min<size_t>(length * 10 + (text[place] - '0'), 1 << 30);
      }
      if (length <= place + 1 || length > text.size()) return;
      const std::string_view line =
          text.substr(place + 1, length - place - 2);  // and no line feed
      text.remove_prefix(length);
      const size_t equals = line.find('=');
      if (equals == line.npos) continue;
      const std::string_view name = line.substr(0, equals);
      const std::string value(line.substr(equals + 1));
      if (name == "path") path = value;
      if (name == "size") size = std::strtoll(value.c_str(), nullptr, 10);
    }
  }
};

}  // namespace

// Goes from header to header.
class TarFile::Headers {
 public:
  Headers(const LocalFile* file, int64_t offset)
      : file_(file), offset_(offset), window_(kTarWindowBytes) {}

  // Gives the next regular file; none at the end. `record` is the number of the
  // record in work, for errors.
  Status Next(int64_t record, std::optional<TarMember>* member) {
    member->reset();
    int64_t begin = offset_;
    Told told;
    const auto damaged = [this, record](const char* what) {
      return file_->Damaged({offset_, record}, what);
    };
    while (offset_ + kTarHeaderBytes <= file_->num_bytes()) {
      std::string_view header;
      HVD_RETURN_IF_ERROR(ReadHeader(&header));
      int64_t total = 0;
      for (const unsigned char byte : header) total += byte;
      if (total == 0) return Status::Ok();
      if (!HasChecksum(header, total)) {
        return damaged("its header does not match its checksum");
      }
      const int64_t data = offset_ + kTarHeaderBytes;
      const int64_t size =
          told.size.value_or(ParseNumber(header.substr(124, 12)));
      if (size < 0 || size > file_->num_bytes() - data) {
        return damaged("the file ends in it");
      }
      const char kind = header[156];
      const bool describes = kind == 'x' || kind == 'L';
      if (describes) {
        if (size > kMostTextBytes)
          return damaged("what describes it is too long");
        std::string text(size, '\0');
        HVD_RETURN_IF_ERROR(file_->Read(data, size, text.data()));
        if (kind == 'x') {
          told.TakePax(text);
        } else {
          text.erase(std::min(text.find_last_not_of('\0') + 1, text.size()));
          told.path = text;
        }
      } else if (kind == '0' || kind == '\0' || kind == '7') {
        Found(begin, data, size, told.path ? *told.path : NameIn(header),
              &member->emplace());
      }
      last_bytes_ = size;
      offset_ = data + Padded(size);
      if (*member) return Status::Ok();
      if (!describes) told = {};
      if (told.is_empty()) begin = offset_;
    }
    if (offset_ == file_->num_bytes()) return Status::Ok();
    return damaged("the file ends in it");
  }

 private:
  Status ReadHeader(std::string_view* header) {
    if (offset_ < window_begin_ || offset_ + kTarHeaderBytes > window_end_) {
      const int64_t ahead =
          last_bytes_ < kSmallMemberBytes ? kTarWindowBytes : kTarHeaderBytes;
      window_begin_ = offset_;
      window_end_ = std::min(offset_ + ahead, file_->num_bytes());
      HVD_RETURN_IF_ERROR(
          file_->Read(offset_, window_end_ - offset_, window_.data()));
    }
    *header = {window_.data() + (offset_ - window_begin_), kTarHeaderBytes};
    return Status::Ok();
  }

  static void Found(int64_t begin, int64_t data, int64_t size,
                    const std::string& path, TarMember* member) {
    const size_t name = path.rfind('/') + 1;  // 0 if there is no slash
    const size_t dot = std::min(path.find('.', name), path.size());
    member->begin = begin;
    member->offset = data;
    member->num_bytes = size;
    member->key = path.substr(0, dot);
    member->suffix = dot < path.size() ? path.substr(dot + 1) : "";
  }

  const LocalFile* const file_;
  int64_t offset_, last_bytes_ = 0;
  int64_t window_begin_ = 0, window_end_ = 0;
  std::vector<char> window_;
};

Status TarFile::Open(const std::string& path, std::unique_ptr<TarFile>* file) {
  LocalFile opened;
  HVD_RETURN_IF_ERROR(LocalFile::Open(path, &opened));
  file->reset(new TarFile(std::move(opened)));
  return Status::Ok();
}

Status TarFile::ReadRows(RecordPlace from, const See& see) const {
  Headers headers(&file_, from.offset);
  TarRow row;
  for (std::optional<TarMember> member;;) {
    HVD_RETURN_IF_ERROR(headers.Next(from.record, &member));
    auto& members = row.members;
    if (!members.empty() && (!member || member->key != members.front().key)) {
      if (!see(std::move(row))) return Status::Ok();
      ++from.record;
      row = {};
    }
    if (!member) return Status::Ok();
    if (members.empty()) row.begin = member->begin;
    row.end = member->offset + Padded(member->num_bytes);
    members.push_back(std::move(*member));
  }
}

Status TarFile::MakeIndex(bool check, RecordIndex* index) const {
  const Status status = ReadRows({}, [index](const TarRow& row) {
    index->See(row.begin);
    index->file_bytes = row.end;
    return true;
  });
  if (status.ok()) {
    index->file_bytes = file_.num_bytes();
    return status;
  }
  if (!check || status.code() != StatusCode::kDamagedFile) return status;
  index->lost_bytes = file_.num_bytes() - index->file_bytes;
  return Status::Ok();
}

}  // namespace hvd
