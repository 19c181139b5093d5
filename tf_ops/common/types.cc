#include "tf_ops/common/types.h"

namespace hvd {
namespace {

struct DataTypeTraits {
  const char* name;
  size_t num_bytes;
  bool floating;
};

constexpr DataTypeTraits kTraits[kNumDataTypes] = {
    {"bool", 1, false},   {"uint8", 1, false},        {"int8", 1, false},
    {"uint16", 2, false}, {"int16", 2, false},        {"uint32", 4, false},
    {"int32", 4, false},  {"uint64", 8, false},       {"int64", 8, false},
    {"float16", 2, true}, {"bfloat16", 2, true},      {"float32", 4, true},
    {"float64", 8, true}, {"float8_e4m3fn", 1, true}, {"float8_e5m2", 1, true},
};

const DataTypeTraits& TraitsOf(DataType dtype) {
  return kTraits[static_cast<size_t>(dtype)];
}

}  // namespace

size_t ElementBytes(DataType dtype) { return TraitsOf(dtype).num_bytes; }

bool IsFloating(DataType dtype) { return TraitsOf(dtype).floating; }

bool IsFloat8(DataType dtype) {
  return dtype == DataType::kFloat8E4m3fn || dtype == DataType::kFloat8E5m2;
}

const char* DataTypeName(DataType dtype) { return TraitsOf(dtype).name; }

bool DataTypeFromName(const std::string& name, DataType* dtype) {
  for (int i = 0; i < kNumDataTypes; ++i) {
    if (name != kTraits[i].name) continue;
    *dtype = static_cast<DataType>(i);
    return true;
  }
  return false;
}

const char* ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kAdasum:
      return "Adasum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "unknown";
}

std::string WireFormatName(WireFormat format) {
  if (IsLowRank(format)) {
    return "PowerSGD(rank=" + std::to_string(LowRankOf(format)) +
           (Alternates(format) ? ", alternate=True)" : ")");
  }
  switch (format) {
    case WireFormat::kExact:
      return "none";
    case WireFormat::kInt8:
      return "int8";
    case WireFormat::kInt4:
      return "int4";
    default:
      return "unknown";
  }
}

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "the CPU";
    case DeviceKind::kGpu:
      return "a GPU";
    case DeviceKind::kSecondGpu:
      return "a second GPU of the same rank";
  }
  return "unknown";
}

const char* CollectiveKindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return "allreduce";
    case CollectiveKind::kAllgather:
      return "allgather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAlltoall:
      return "alltoall";
    case CollectiveKind::kReducescatter:
      return "reducescatter";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kJoin:
      return "join";
  }
  return "unknown";
}

bool IsWireFormat(int64_t number) {
  const bool is_low_rank =
      number > static_cast<int64_t>(WireFormat::kPowerSgd) && number < 0x80 &&
      number != static_cast<int64_t>(WireFormat::kAcpSgd);
  return is_low_rank ||
         (number >= 0 && number <= static_cast<int64_t>(WireFormat::kInt4));
}

Status ToWireFormat(int64_t number, WireFormat* format) {
  if (!IsWireFormat(number)) {
    return Status::InvalidArgument(
        "`wire_format` must be 0 (none), 1 (int8), 2 (int4), 0x40 or 0x60 and "
        "a rank from 1 to 31 (PowerSGD). Received: " +
        std::to_string(number));
  }
  *format = static_cast<WireFormat>(number);
  return Status::Ok();
}

Status CheckReduce(DataType dtype, ReduceOp op) {
  if (IsFloat8(dtype)) {
    return Status::InvalidArgument(
        std::string("the CPU cannot reduce ") + DataTypeName(dtype) +
        ", only NCCL on GPUs can: cast to float16 or bfloat16 first");
  }
  if (op == ReduceOp::kAdasum) {
    if (IsFloating(dtype)) return Status::Ok();
    return Status::InvalidArgument(
        std::string("Adasum needs a floating dtype. Received: dtype=") +
        DataTypeName(dtype));
  }
  if (dtype != DataType::kBool || op == ReduceOp::kMin ||
      op == ReduceOp::kMax) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      std::string("a reduction of bool must use Min (all) or Max (any). "
                  "Received: op=") +
      ReduceOpName(op) + "; to count, cast to an integer dtype");
}

int64_t NumElements(const Shape& shape) {
  int64_t num_elements = 1;
  for (int64_t dim : shape) num_elements *= dim;
  return num_elements;
}

std::string SecondsToString(std::chrono::duration<double> time) {
  std::string text = std::to_string(time.count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string ShapeToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace hvd
