#include "tf_ops/collectives/wire/wire_job.h"

#include <cstring>

#include "tf_ops/common/codec.h"

namespace hvd {
namespace {

void PutList(const std::vector<uint64_t>& list, ByteWriter* writer) {
  writer->Put(static_cast<uint32_t>(list.size()));
  for (uint64_t number : list) writer->Put(number);
}

std::vector<uint64_t> GetList(ByteReader* reader) {
  std::vector<uint64_t> list(reader->GetCount(sizeof(uint64_t)));
  for (uint64_t& number : list) number = reader->Get<uint64_t>();
  return list;
}

// Whether the blocks have the parts of the tensors.
bool HasTensors(const WireJob& job) {
  if (job.tensors.empty()) return true;
  const size_t unit = UnitOf(job.spec);
  const int num_hosts = static_cast<int>(job.bytes.size());
  for (int host = 0; host < num_hosts; ++host) {
    size_t num_bytes = 0;
    for (const WireJob::Tensor& t : job.tensors) {
      num_bytes +=
          DivideUp(PartOf(t.num_bytes, num_hosts, host, unit).size(), unit) *
          unit;
    }
    if (num_bytes != job.bytes[static_cast<size_t>(host)]) return false;
  }
  return true;
}

// Whether the blocks are what quantize.h packs.
bool CanPack(const WireJob& job) {
  const size_t unit = UnitOf(job.spec);
  return job.reduces && job.gathers && IsFloating(job.spec.dtype) &&
         !IsFloat8(job.spec.dtype) && !IsLowRank(job.spec.wire_format) &&
         (job.spec.op == ReduceOp::kSum || job.spec.op == ReduceOp::kAverage) &&
         std::all_of(job.bytes.begin(), job.bytes.end(),
                     [unit](uint64_t bytes) { return bytes % unit == 0; }) &&
         HasTensors(job);
}

// Whether all tensors are matrices with factors of this rank.
bool HasMatrices(const WireJob& job) {
  if (!IsLowRank(job.spec.wire_format) || job.bytes.size() != 1) return false;
  uint64_t num_bytes = 0;
  for (const WireJob::Tensor& t : job.tensors) {
    if (t.rows == 0) return false;
    const MatrixShape shape{
        t.rows, t.num_bytes / ElementBytes(job.spec.dtype) / t.rows};
    if (shape.num_elements() * ElementBytes(job.spec.dtype) != t.num_bytes ||
        !IsWorthLowRank(shape, LowRankOf(job.spec.wire_format))) {
      return false;
    }
    num_bytes += t.num_bytes;
  }
  return num_bytes == job.bytes[0] && job.spec.num_ranks > 0 &&
         IsLowRankType(job.spec.dtype) &&
         (job.spec.op == ReduceOp::kSum || job.spec.op == ReduceOp::kAverage);
}

bool MakesSense(const WireJob& job, int num_hosts) {
  const size_t hosts = static_cast<size_t>(num_hosts);
  switch (job.kind) {
    case WireJob::Kind::kBlocks:
      return job.bytes.size() == hosts && (job.reduces || job.gathers) &&
             job.spec.num_ranks > 0 &&
             (job.spec.wire_format == WireFormat::kExact || CanPack(job));
    case WireJob::Kind::kLowRank:
      return HasMatrices(job);
    case WireJob::Kind::kBroadcast:
      return job.bytes.size() == 1 && job.host >= 0 && job.host < num_hosts;
    case WireJob::Kind::kAlltoall:
      return job.bytes.size() == hosts && job.received.size() == hosts;
  }
  return false;
}

}  // namespace

void Encode(const WireJob& job, std::vector<uint8_t>* bytes) {
  const size_t begin = bytes->size();
  ByteWriter writer(bytes);
  writer.Put(uint32_t{0});  // the length
  writer.Put(job.kind);
  writer.Put(job.first_chunk);
  writer.Put(job.reduces);
  writer.Put(job.gathers);
  writer.Put(job.spec.dtype);
  writer.Put(job.spec.op);
  writer.Put(job.spec.postscale);
  writer.Put(job.spec.num_ranks);
  writer.Put(job.spec.wire_format);
  writer.Put(job.host);
  PutList(job.bytes, &writer);
  PutList(job.received, &writer);
  writer.Put(static_cast<uint32_t>(job.tensors.size()));
  for (const WireJob::Tensor& t : job.tensors) {
    writer.Put(t.key);
    writer.Put(t.num_bytes);
    writer.Put(t.rows);
  }
  const auto length = static_cast<uint32_t>(bytes->size() - begin);
  std::memcpy(bytes->data() + begin, &length, sizeof(length));
}

Status Decode(const std::vector<uint8_t>& bytes, size_t* offset, int num_hosts,
              WireJob* job, bool* found) {
  *found = false;
  uint32_t length = 0;
  if (bytes.size() - *offset < sizeof(length)) return Status::Ok();
  std::memcpy(&length, bytes.data() + *offset, sizeof(length));
  if (bytes.size() - *offset < length) return Status::Ok();
  ByteReader reader(bytes.data() + *offset, length);
  reader.Get<uint32_t>();
  job->kind = reader.GetUpTo(WireJob::Kind::kLowRank);
  job->first_chunk = reader.Get<uint32_t>();
  job->reduces = reader.GetUpTo<uint8_t>(1) != 0;
  job->gathers = reader.GetUpTo<uint8_t>(1) != 0;
  job->spec.dtype = reader.GetUpTo(static_cast<DataType>(kNumDataTypes - 1));
  job->spec.op = reader.GetUpTo(ReduceOp::kProduct);
  job->spec.postscale = reader.Get<double>();
  job->spec.num_ranks = reader.Get<int>();
  job->spec.wire_format = reader.Get<WireFormat>();
  reader.Expect(IsWireFormat(static_cast<int64_t>(job->spec.wire_format)));
  job->host = reader.Get<int32_t>();
  job->bytes = GetList(&reader);
  job->received = GetList(&reader);
  job->tensors.resize(reader.GetCount(3 * sizeof(uint64_t)));
  for (WireJob::Tensor& t : job->tensors) {
    t.key = reader.Get<uint64_t>();
    t.num_bytes = reader.Get<uint64_t>();
    t.rows = reader.Get<uint64_t>();
  }
  if (!reader.ok() || !reader.at_end() || !MakesSense(*job, num_hosts)) {
    return Status::Internal("a job of the wire makes no sense");
  }
  *offset += length;
  *found = true;
  return Status::Ok();
}

}  // namespace hvd
