// Element types, reductions and shapes: the vocabulary of every layer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"

namespace hvd {

enum class DataType : uint8_t {
  kBool = 0,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kFloat8E4m3fn,  // reduced only on GPUs
  kFloat8E5m2,    // likewise
};
inline constexpr int kNumDataTypes = 15;

// Numbered as the Python constants `hvd.Average`, `hvd.Sum`, ...
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

enum class CollectiveKind : uint8_t {
  kAllreduce = 0,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReducescatter,
  kBarrier,
  kJoin,
};

// How the values of an allreduce travel between hosts. Numbered as in
// hvd_keras/compression.py.
enum class WireFormat : uint8_t {
  kExact = 0,
  kInt8 = 1,  // see collectives/quantize.h
  kInt4 = 2,
  // With a rank from 1 to 31 in the lowest bits: see collectives/low_rank.h.
  kPowerSgd = 0x40,
  kAcpSgd = 0x60,  // one factor a call, in turns
};

constexpr bool IsLowRank(WireFormat format) {
  return format > WireFormat::kPowerSgd;
}
constexpr bool Alternates(WireFormat format) {
  return format > WireFormat::kAcpSgd;
}
constexpr size_t LowRankOf(WireFormat format) {
  return static_cast<size_t>(format) & 0x1f;
}

// Where the tensors of a call are.
enum class DeviceKind : uint8_t {
  kCpu = 0,
  kGpu,
  kSecondGpu,  // not the GPU that the rank used before: an error
};

size_t ElementBytes(DataType dtype);
bool IsFloating(DataType dtype);
bool IsFloat8(DataType dtype);
const char* DataTypeName(DataType dtype);  // "float32"
bool DataTypeFromName(const std::string& name, DataType* dtype);
const char* ReduceOpName(ReduceOp op);                // "Average"
const char* CollectiveKindName(CollectiveKind kind);  // "allreduce"
std::string WireFormatName(WireFormat format);        // "int8"
const char* DeviceKindName(DeviceKind kind);          // "the CPU"

// Whether `number` is that of a format.
bool IsWireFormat(int64_t number);
// InvalidArgument unless it is.
Status ToWireFormat(int64_t number, WireFormat* format);

// InvalidArgument if the CPU cannot reduce `dtype` with `op`.
Status CheckReduce(DataType dtype, ReduceOp op);

using Shape = std::vector<int64_t>;
int64_t NumElements(const Shape& shape);
std::string ShapeToString(const Shape& shape);                    // "[2, 3]"
std::string SecondsToString(std::chrono::duration<double> time);  // "1.5 s"

}  // namespace hvd
