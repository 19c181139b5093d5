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

// Also damaged records, and lost bytes.
std::tuple<IndexTuple, py::bytes, int64_t> IndexRecords(const std::string& path,
                                                        bool check) {
  RecordIndex index;
  RaiseIfError(WithoutGil([&] {
    std::unique_ptr<RecordFile> file;
    HVD_RETURN_IF_ERROR(RecordFile::Open(path, &file));
    return file->MakeIndex(check, &index);
  }));
  return {IndexTuple(index.file_bytes, index.num_records, index.first_checksum,
                     BytesOf(index.blocks)),
          BytesOf(index.damaged), index.lost_bytes};
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
  m->def("add_records", &AddRecords, "files"_a,
         "Makes a source for HorovodReadRecords, of paths, fingerprints and "
         "indexes; returns its number.");
  m->def("remove_records", &RemoveRecordSource, "source"_a,
         "Forgets a source.");
}

}  // namespace hvd
