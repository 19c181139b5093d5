// Hosts and values of the tests of hierarchical collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/half.h"
#include "tf_ops/collectives/reduce.h"

namespace hvd {

using Bytes = std::vector<std::byte>;
using Layout = std::vector<std::vector<int>>;  // the ranks of each host

inline const Layout kLayouts[] = {{{0, 1}, {2, 3}}, {{0, 3}, {1}, {2, 4}}};

// Appends `value` as `dtype`.
inline void Append(DataType dtype, double value, Bytes* bytes) {
  const auto put = [bytes](auto typed) {
    const auto* begin = reinterpret_cast<const std::byte*>(&typed);
    bytes->insert(bytes->end(), begin, begin + sizeof(typed));
  };
  switch (dtype) {
    case DataType::kBool:
      return put(static_cast<uint8_t>(value > 1.5));
    case DataType::kUint8:
      return put(static_cast<uint8_t>(value));
    case DataType::kInt8:
      return put(static_cast<int8_t>(value));
    case DataType::kUint16:
      return put(static_cast<uint16_t>(value));
    case DataType::kInt16:
      return put(static_cast<int16_t>(value));
    case DataType::kUint32:
      return put(static_cast<uint32_t>(value));
    case DataType::kInt32:
      return put(static_cast<int32_t>(value));
    case DataType::kUint64:
      return put(static_cast<uint64_t>(value));
    case DataType::kInt64:
      return put(static_cast<int64_t>(value));
    case DataType::kFloat16:
      return put(ToFloat16(static_cast<float>(value)));
    case DataType::kBfloat16:
      return put(ToBfloat16(static_cast<float>(value)));
    case DataType::kFloat32:
      return put(static_cast<float>(value));
    default:
      return put(value);
  }
}

}  // namespace hvd
