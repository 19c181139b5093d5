// TFRecord files, read by the numbers of records.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/test_util.h"
#include "tf_ops/records/crc32c.h"
#include "tf_ops/records/record_file.h"
#include "tf_ops/records/record_source.h"
#include "tf_ops/records/tar_file.h"

namespace hvd {
namespace {

std::string Framed(const std::string& data) {
  const uint64_t size = data.size();
  const uint32_t of_size = MaskedCrc32c(&size, sizeof(size));
  const uint32_t of_data = MaskedCrc32c(data.data(), data.size());
  std::string record(reinterpret_cast<const char*>(&size), sizeof(size));
  record.append(reinterpret_cast<const char*>(&of_size), sizeof(of_size));
  record += data;
  return record.append(reinterpret_cast<const char*>(&of_data),
                       sizeof(of_data));
}

// A file that is gone at the end.
class TestFile {
 public:
  explicit TestFile(const std::string& content) {
    char path[] = "/tmp/hvd_records_XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    CHECK(write(fd, content.data(), content.size()) ==
          static_cast<ssize_t>(content.size()));
    close(fd);
  }
  ~TestFile() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  std::unique_ptr<RecordFile> Open() const {
    std::unique_ptr<RecordFile> file;
    CHECK(RecordFile::Open(path_, &file).ok());
    return file;
  }
  Status Index(RecordIndex* index) const {
    return Open()->MakeIndex(false, index);
  }

 private:
  std::string path_;
};

// Records of other lengths: none, a byte, some kilobytes.
std::vector<std::string> SomeRecords(int count, int most_bytes) {
  std::vector<std::string> records;
  for (int i = 0; i < count; ++i) {
    records.push_back(std::string(i * 7919 % (most_bytes + 1), 'a' + i % 26));
  }
  return records;
}

std::string FileOf(const std::vector<std::string>& records) {
  std::string content;
  for (const std::string& record : records) content += Framed(record);
  return content;
}

Status Read(RecordSource* source, int64_t number, std::string* data) {
  RecordSource::Record record;
  HVD_RETURN_IF_ERROR(source->Locate(number, &record));
  const bool exactly = record.place.record % 2 == 0;
  record.file->Prefetch(record.place, record.data_bytes, exactly);
  data->resize(record.data_bytes);
  return record.file->Read(record.place, record.data_bytes, exactly,
                           data->data());
}

std::string ReadOf(RecordSource* source, int64_t number) {
  std::string data;
  CHECK(Read(source, number, &data) == Status::Ok());
  return data;
}

TEST_CASE("checksums are those of RFC 3720") {
  CHECK(Crc32c("123456789", 9) == 0xe3069283u);
  const std::string zeros(32, '\0');
  CHECK(Crc32c(zeros.data(), zeros.size()) == 0x8a9136aau);
  CHECK(Crc32c("", 0) == 0);
  const std::string text = FileOf(SomeRecords(9, 100));
  for (size_t size = 0; size < 40; ++size) {
    CHECK(Crc32c(text.data() + 3, size) ==
          Crc32cByTables(text.data() + 3, size));
  }
}

TEST_CASE("an index has few blocks, and each record is found by its number") {
  for (const int most_bytes : {0, 40, 3000, 300000}) {
    const auto records = SomeRecords(most_bytes > 3000 ? 60 : 1500, most_bytes);
    const TestFile one(FileOf(records)), empty(""), other(FileOf({"x", "y"}));
    RecordSource::File files[3] = {
        {one.path(), 5, {}}, {empty.path(), 6, {}}, {other.path(), 7, {}}};
    CHECK(one.Index(&files[0].index) == Status::Ok());
    CHECK(empty.Index(&files[1].index) == Status::Ok());
    CHECK(other.Index(&files[2].index) == Status::Ok());
    const RecordIndex& index = files[0].index;
    CHECK(index.num_records == static_cast<int64_t>(records.size()));
    CHECK(index.blocks.size() <=
          static_cast<size_t>(index.file_bytes / (1 << 20) + 1));
    CHECK(files[1].index.num_records == 0);
    RecordSource source({files[0], files[1], files[2]});
    int64_t first = 0, count = 0;
    CHECK(source.Find(one.path(), &first, &count) == Status::Ok());
    CHECK(count == index.num_records);
    for (int64_t i = count - 1; i >= 0; --i) {
      CHECK(ReadOf(&source, first + i) == records[i]);
    }
    CHECK(source.Find(other.path(), &first, &count) == Status::Ok());
    CHECK(ReadOf(&source, first) == "x");
    CHECK(ReadOf(&source, first + 1) == "y");
    CHECK(!source.Find("elsewhere", &first, &count).ok());
  }
}

TEST_CASE("threads read at once") {
  const auto records = SomeRecords(4000, 2000);
  const TestFile test_file(FileOf(records));
  RecordSource::File file{test_file.path(), 0, {}};
  CHECK(test_file.Index(&file.index).ok());
  RecordSource source({file});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < records.size(); i += 3) {
        CHECK(ReadOf(&source, i) == records[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the error of an index of these bytes.
std::string IndexError(const std::string& content) {
  RecordIndex index;
  const Status status = TestFile(content).Index(&index);
  CHECK(status.code() == StatusCode::kDamagedFile);
  return status.message();
}

TEST_CASE("an index of a damaged file says where it is damaged") {
  const std::string whole = FileOf({"first", "second", "third"});
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(IndexError(whole.substr(0, whole.size() - 1)),
            "record 2, at byte 43: the file ends in it"));
  CHECK(has(IndexError(whole + "more"),
            "record 3, at byte 64: the file ends in it"));
  std::string other = whole;
  other[21] ^= 1;  // the length of the second record
  CHECK(has(IndexError(other), "record 1, at byte 21: its length"));
  CHECK(has(IndexError(std::string(4096, 'x')), "record 0, at byte 0"));
}

TEST_CASE("a check tells what is damaged, and what is lost behind it") {
  std::string content = FileOf({"first", "second", "third", "last"});
  content[21 + 12] ^= 1;  // the data of the second record
  const TestFile damaged(content), torn(content.substr(0, content.size() - 1));
  content[64] ^= 1;  // the length of the last one
  const TestFile lost(content), junk(std::string(4096, 'x'));
  const auto check = [](const TestFile& file) {
    RecordIndex index;
    CHECK(file.Open()->MakeIndex(true, &index).ok());
    return index;
  };
  CHECK(check(damaged).damaged == std::vector<int64_t>{1});
  CHECK(check(damaged).num_records == 4);
  CHECK(check(damaged).lost_bytes == 0);
  for (const TestFile* file : {&torn, &lost}) {
    const RecordIndex index = check(*file);
    CHECK(index.damaged == std::vector<int64_t>{1});
    CHECK(index.num_records == 3);
    CHECK(index.file_bytes == 64);
    CHECK(index.lost_bytes == (file == &torn ? 19 : 20));
    RecordSource source({{file->path(), 0, index}});
    CHECK(ReadOf(&source, 2) == "third");
  }
  CHECK(check(junk).num_records == 0);
  CHECK(check(junk).lost_bytes == 4096);
}

TEST_CASE("damaged data and changed files are told when they are read") {
  std::string content = FileOf({"first", "second", "third"});
  const TestFile test_file(content);
  RecordSource::File file{test_file.path(), 0, {}};
  CHECK(test_file.Index(&file.index).ok());
  const auto error = [&](const std::string& now, int64_t number) {
    FILE* const written = std::fopen(test_file.path().c_str(), "wb");
    CHECK(std::fwrite(now.data(), 1, now.size(), written) == now.size());
    std::fclose(written);
    RecordSource source({file});
    std::string data;
    return Read(&source, number, &data).message();
  };
  CHECK(error(content + Framed("appended"), 1).empty());
  std::string other = content;
  other[34] ^= 1;
  CHECK(error(other, 0).empty());
  CHECK(error(other, 1) == test_file.path() +
                               ": record 1, at byte 21: its data do not match "
                               "their checksum");
  CHECK(error(content.substr(0, 50), 1) ==
        test_file.path() +
            " has become shorter since it was given to `hvd.shard`");
  other = FileOf({"first, longer, and", "three"}) + Framed("more of them");
  CHECK(error(other, 1).find("changed") != std::string::npos);
}

// ---- Tars ----

std::string TarHeader(const std::string& name, int64_t size, char kind) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char field[13];
  std::snprintf(field, sizeof(field), "%011llo",
                static_cast<unsigned long long>(size));
  header.replace(124, 11, field);
  header.replace(148, 8, 8, ' ');
  header[156] = kind;
  int total = 0;
  for (const unsigned char byte : header) total += byte;
  std::snprintf(field, sizeof(field), "%06o", total);
  header.replace(148, 7, std::string(field) + '\0');
  return header;
}

std::string TarMemberOf(const std::string& name, const std::string& data,
                        char kind = '0') {
  std::string member = TarHeader(name, data.size(), kind) + data;
  member.resize((member.size() + 511) / 512 * 512, '\0');
  return member;
}

Status RowsOf(const std::string& content, std::vector<TarRow>* rows) {
  const TestFile test_file(content);
  std::unique_ptr<TarFile> file;
  CHECK_OK(TarFile::Open(test_file.path(), &file));
  return file->ReadRows({}, [rows](TarRow row) {
    rows->push_back(std::move(row));
    return true;
  });
}

std::string SomeTar() {
  return TarMemberOf("a/0.jpg", std::string(700, 'x')) +
         TarMemberOf("a/0.cls", "1") + TarMemberOf("a", "", '5') +
         TarMemberOf("pax", "19 path=long/1.jpg\n", 'x') +
         TarMemberOf("short", "y") +
         TarMemberOf("gnu", std::string("long/1.cls\0", 11), 'L') +
         TarMemberOf("short", "2") + std::string(1024, '\0');
}

TEST_CASE("members of a key are a row") {
  std::vector<TarRow> rows;
  REQUIRE_OK(RowsOf(SomeTar(), &rows));
  REQUIRE(rows.size() == 2);
  REQUIRE(rows[0].members.size() == 2);
  CHECK(rows[0].members[0].key == "a/0");
  CHECK(rows[0].members[1].suffix == "cls");
  CHECK(rows[0].begin == 0);
  CHECK(rows[0].end == 2560);
  REQUIRE(rows[1].members.size() == 2);
  CHECK(rows[1].members[0].key == "long/1");
  CHECK(rows[1].members[1].suffix == "cls");
  CHECK(rows[1].begin == 3072);  // behind a folder, with what describes it
  CHECK(rows[1].members[1].num_bytes == 1);
}

TEST_CASE("a damaged tar is told, or read") {
  const std::string tar = SomeTar();
  std::vector<TarRow> rows;
  for (size_t place = 0; place < tar.size(); place += 3) {
    std::string damaged = tar;
    damaged[place] ^= 1 << place % 8;
    rows.clear();
    const Status status = RowsOf(damaged, &rows);
    const bool was_told = status.code() == StatusCode::kDamagedFile;
    CHECK((status.ok() || was_told));
    CHECK(rows.size() <= 4);
    // Headers have checksums; a row's members lie in the file.
    if (place < 512) CHECK(was_told);
    for (const TarRow& row : rows) {
      CHECK(row.end <= static_cast<int64_t>(tar.size()));
    }
  }
  for (size_t size = 0; size < tar.size() - 1024; size += 100) {
    rows.clear();
    const Status status = RowsOf(tar.substr(0, size), &rows);
    if (size % 512 != 0) CHECK(status.code() == StatusCode::kDamagedFile);
  }
  // Numbers that are too large for what reads them.
  for (const char byte : {'\x80', '\xff'}) {
    std::string header = TarHeader("a.b", 0, '0');
    header.replace(124, 12, 12, byte);
    int total = 8 * ' ';
    header.replace(148, 8, 8, '\0');
    for (const unsigned char each : header) total += each;
    char field[16];
    std::snprintf(field, sizeof(field), "%06o", total);
    header.replace(148, 7, std::string(field) + '\0');
    CHECK(RowsOf(header + std::string(1024, '\0'), &rows).code() ==
          StatusCode::kDamagedFile);
  }
  const std::string pax = "99999999999999999999 path=x\n";
  CHECK_OK(RowsOf(TarMemberOf("pax", pax, 'x') + TarMemberOf("a.b", "1") +
                      std::string(1024, '\0'),
                  &rows));
}

TEST_CASE("what is no file is refused") {
  std::unique_ptr<RecordFile> file;
  for (const char* path : {"/nowhere/x", "/tmp", "/dev/null"}) {
    CHECK(RecordFile::Open(path, &file).code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace hvd
