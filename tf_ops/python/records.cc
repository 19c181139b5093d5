#include "tf_ops/python/records.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tf_ops/python/raise.h"
#include "tf_ops/records/record_file.h"
#include "tf_ops/records/record_source.h"
#include "tf_ops/records/tar_file.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace hvd {
namespace {

// Bytes, number of records, checksum of the first one, and blocks.
using IndexTuple = std::tuple<int64_t, int64_t, uint32_t, py::bytes>;

template <typename T>
py::bytes BytesOf(const std::vector<T>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()),
                   values.size() * sizeof(T));
}

IndexTuple TupleOf(const RecordIndex& index) {
  return {index.file_bytes, index.num_records, index.first_checksum,
          BytesOf(index.blocks)};
}

// Also damaged records, and lost bytes.
std::tuple<IndexTuple, py::bytes, int64_t> IndexRecords(const std::string& path,
                                                        bool check) {
  RecordIndex index;
  RaiseIfError(WithoutGil([&] {
    std::unique_ptr<RecordFile> file;
    HVD_RETURN_IF_ERROR(RecordFile::Open(path, &file));
    return file->MakeIndex(check, &index);
  }));
  return {TupleOf(index), BytesOf(index.damaged), index.lost_bytes};
}

IndexTuple IndexTar(const std::string& path, bool check) {
  RecordIndex index;
  RaiseIfError(WithoutGil([&] {
    std::unique_ptr<TarFile> file;
    HVD_RETURN_IF_ERROR(TarFile::Open(path, &file));
    return file->MakeIndex(check, &index);
  }));
  return TupleOf(index);
}

// A suffix, and where the header, the data, and how long they are.
using MemberTuple = std::tuple<std::string, int64_t, int64_t, int64_t>;

std::vector<std::tuple<int64_t, py::bytes, std::vector<MemberTuple>>> TarRows(
    const std::string& path, int64_t begin, int64_t first, int64_t end) {
  std::vector<TarRow> rows;
  RaiseIfError(WithoutGil([&] {
    std::unique_ptr<TarFile> file;
    HVD_RETURN_IF_ERROR(TarFile::Open(path, &file));
    return file->ReadRows({begin, first}, [&](TarRow row) {
      rows.push_back(std::move(row));
      return rows.back().end < end;
    });
  }));
  std::vector<std::tuple<int64_t, py::bytes, std::vector<MemberTuple>>> found;
  for (const TarRow& row : rows) {
    std::vector<MemberTuple> members;
    for (const TarMember& member : row.members) {
      members.emplace_back(member.suffix, member.begin, member.offset,
                           member.num_bytes);
    }
    found.emplace_back(row.begin, row.members.front().key, std::move(members));
  }
  return found;
}

RecordSource::File FileOf(const std::string& path, uint32_t fingerprint,
                          const IndexTuple& of_python) {
  RecordSource::File file;
  file.path = path;
  file.fingerprint = fingerprint;
  RecordIndex& index = file.index;
  index.file_bytes = std::get<0>(of_python);
  index.num_records = std::get<1>(of_python);
  const std::string_view blocks(std::get<3>(of_python));
  index.blocks.resize(blocks.size() / sizeof(RecordPlace));
  std::memcpy(index.blocks.data(), blocks.data(),
              index.blocks.size() * sizeof(RecordPlace));
  return file;
}

int32_t AddRecords(
    const std::vector<std::tuple<std::string, uint32_t, IndexTuple>>& given) {
  std::vector<RecordSource::File> files;
  for (const auto& [path, fingerprint, index] : given) {
    files.push_back(FileOf(path, fingerprint, index));
  }
  return AddRecordSource(std::move(files));
}

}  // namespace

void DefineRecords(py::module_* m) {
  m->def("index_records", &IndexRecords, "path"_a, "check"_a = false,
         "Finds where the records of a TFRecord file begin; returns (its "
         "bytes, the number of records, a checksum of the first one, blocks), "
         "and, if it is to check all data, damaged records and lost bytes.");
  m->def("index_tar", &IndexTar, "path"_a, "check"_a = false,
         "Finds where the rows of a tar begin; a check leaves out what is lost "
         "at its end. Returns (the bytes of the rows, their number, 0, "
         "blocks).");
  m->def("tar_rows", &TarRows, "path"_a, "begin"_a, "first"_a, "end"_a,
         "Returns the rows from the one that begins at a byte to the one that "
         "ends at another: (its begin, key, members), and of each member "
         "(suffix, where its header is, where its data, their bytes). `first` "
         "is the number of the first row.");
  m->def("add_records", &AddRecords, "files"_a,
         "Makes a source for HorovodReadRecords, of paths, fingerprints and "
         "indexes; returns its number.");
  m->def("remove_records", &RemoveRecordSource, "source"_a,
         "Forgets a source.");
}

}  // namespace hvd
