// Reduces 8-bit floats, slowly.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/gpu/fake/fake_nccl_work.h"

namespace fake {
namespace {

using Table = std::array<float, 256>;  // the value of each bit pattern

Table MakeTable(int num_exponent_bits, bool has_infinity) {
  Table table{};
  const int num_mantissa_bits = 7 - num_exponent_bits;
  const int bias = (1 << (num_exponent_bits - 1)) - 1;
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent =
        bits >> num_mantissa_bits & ((1 << num_exponent_bits) - 1);
    const int mantissa = bits & ((1 << num_mantissa_bits) - 1);
    const int whole =
        exponent == 0 ? mantissa : mantissa + (1 << num_mantissa_bits);
    float value = std::ldexp(static_cast<float>(whole),
                             std::max(exponent, 1) - bias - num_mantissa_bits);
    const bool is_last = exponent == (1 << num_exponent_bits) - 1;
    if (is_last && has_infinity) value = mantissa == 0 ? INFINITY : NAN;
    if ((bits & 0x7f) == 0x7f) value = NAN;
    table[static_cast<size_t>(bits)] = bits < 128 ? value : -value;
  }
  return table;
}

const Table& TableOf(hvd::DataType dtype) {
  static const Table e4m3fn = MakeTable(4, /*has_infinity=*/false);
  static const Table e5m2 = MakeTable(5, /*has_infinity=*/true);
  return dtype == hvd::DataType::kFloat8E4m3fn ? e4m3fn : e5m2;
}

uint8_t Nearest(const Table& table, float value) {
  size_t best = 0;
  for (size_t bits = 1; bits < table.size(); ++bits) {
    if (std::fabs(table[bits] - value) < std::fabs(table[best] - value)) {
      best = bits;
    }
  }
  return static_cast<uint8_t>(best);
}

float Combine(hvd::ReduceOp op, float a, float b) {
  switch (op) {
    case hvd::ReduceOp::kMin:
      return std::min(a, b);
    case hvd::ReduceOp::kMax:
      return std::max(a, b);
    case hvd::ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

}  // namespace

float Float8Value(hvd::DataType dtype, uint8_t bits) {
  return TableOf(dtype)[bits];
}

void ReduceFloat8(const hvd::ReduceSpec& spec, const void* const* sources,
                  int num_sources, void* out, size_t num_elements) {
  const Table& table = TableOf(spec.dtype);
  const bool is_average = spec.op == hvd::ReduceOp::kAverage;
  const float divisor = is_average ? static_cast<float>(num_sources) : 1.0f;
  const auto factor = static_cast<float>(spec.prescale);
  for (size_t i = 0; i < num_elements; ++i) {
    float value = factor * table[static_cast<const uint8_t*>(sources[0])[i]];
    for (int k = 1; k < num_sources; ++k) {
      value =
          Combine(spec.op, value,
                  factor * table[static_cast<const uint8_t*>(sources[k])[i]]);
    }
    static_cast<uint8_t*>(out)[i] = Nearest(table, value / divisor);
  }
}

}  // namespace fake
