// Packed blocks against their promise, for each format and dtype: the bound of
// each element, zeros, denormals, NaN and infinities, sums of several hosts,
// and residuals.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/quantize.h"

namespace hvd {
namespace {

using Bytes = std::vector<std::byte>;
using Reals = std::vector<double>;

constexpr DataType kDtypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                DataType::kFloat32, DataType::kFloat64};
constexpr WireFormat kFormats[] = {WireFormat::kInt8, WireFormat::kInt4};
constexpr size_t kNumBlocks[] = {1, 2, 15, 16, 17, 40};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Elements with one scale, and twice its largest integer.
size_t ElementsOf(WireFormat format) {
  return format == WireFormat::kInt4 ? kInt4Elements : kPackedElements;
}
double LevelsOf(WireFormat format) {
  return format == WireFormat::kInt4 ? 14 : 254;
}

bool IsHalf(DataType dtype) { return ElementBytes(dtype) == 2; }

Bytes AsDtype(DataType dtype, const Reals& values) {
  Bytes bytes(values.size() * ElementBytes(dtype));
  if (dtype == DataType::kFloat64) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  const std::vector<float> floats(values.begin(), values.end());
  if (IsHalf(dtype)) {
    NarrowToHalves(dtype, floats.data(), bytes.data(), floats.size());
  } else {
    std::memcpy(bytes.data(), floats.data(), bytes.size());
  }
  return bytes;
}

Reals AsReals(DataType dtype, const Bytes& bytes) {
  Reals values(bytes.size() / ElementBytes(dtype));
  if (dtype == DataType::kFloat64) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(values.size());
  if (IsHalf(dtype)) {
    WidenHalves(dtype, bytes.data(), floats.data(), floats.size());
  } else {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
  }
  return Reals(floats.begin(), floats.end());
}

// Values whose magnitude differs from block to block.
Reals SomeValues(size_t num_blocks, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Reals values(num_blocks * kPackedElements);
  for (size_t i = 0; i < values.size(); ++i) {
    const int exponent = static_cast<int>(i / kPackedElements % 7) * 3 - 9;
    values[i] = std::ldexp(normal(generator), exponent);
  }
  return values;
}

double LargestBeside(WireFormat format, const Reals& values, size_t i) {
  double largest = 0;
  const size_t n = ElementsOf(format);
  const size_t begin = i / n * n;
  for (size_t j = begin; j < begin + n; ++j) {
    largest = std::max(largest, std::fabs(values[j]));
  }
  return largest;
}

// How far rounding to `dtype` may move a value.
double Rounding(DataType dtype, double value) {
  switch (dtype) {
    case DataType::kFloat16:
      return std::ldexp(std::fabs(value), -11) + 0x1p-25;
    case DataType::kBfloat16:
      return std::ldexp(std::fabs(value), -8);
    case DataType::kFloat32:
      return std::ldexp(std::fabs(value), -21);
    default:
      return std::ldexp(std::fabs(value), -50);
  }
}

Bytes Packed(WireFormat format, DataType dtype, const Bytes& values,
             void* residual = nullptr) {
  const size_t num_blocks =
      values.size() / (kPackedElements * ElementBytes(dtype));
  Bytes packed(num_blocks * PackedBytes(format, dtype));
  Pack(format, dtype, values.data(), num_blocks, packed.data(), residual);
  return packed;
}

Bytes Unpacked(WireFormat format, DataType dtype, const Bytes& packed) {
  const size_t num_blocks = packed.size() / PackedBytes(format, dtype);
  Bytes values(num_blocks * kPackedElements * ElementBytes(dtype));
  Unpack(format, dtype, packed.data(), num_blocks, values.data());
  return values;
}

// What comes of values on their way.
Reals Sent(WireFormat format, DataType dtype, const Reals& values) {
  return AsReals(
      dtype,
      Unpacked(format, dtype, Packed(format, dtype, AsDtype(dtype, values))));
}

Reals BlockOf(std::initializer_list<double> first, double rest = 0) {
  Reals values(first);
  values.resize(kPackedElements, rest);
  return values;
}

void TestBound(WireFormat format) {
  for (DataType dtype : kDtypes) {
    CAPTURE(DataTypeName(dtype));
    for (size_t num_blocks : kNumBlocks) {
      CAPTURE(num_blocks);
      const Bytes bytes = AsDtype(dtype, SomeValues(num_blocks, 1));
      const Reals values = AsReals(dtype, bytes);
      const Reals sent =
          AsReals(dtype, Unpacked(format, dtype, Packed(format, dtype, bytes)));
      REQUIRE(sent.size() == values.size());
      double worst = 0;  // of the bound
      for (size_t i = 0; i < values.size(); ++i) {
        const double largest = LargestBeside(format, values, i);
        const double bound =
            largest / LevelsOf(format) + Rounding(dtype, largest);
        worst = std::max(worst, std::fabs(sent[i] - values[i]) / bound);
      }
      CHECK(worst <= 1.0);
      // The bound is no wider than it must be.
      if (num_blocks > 10 && !IsHalf(dtype)) CHECK(worst > 0.9);
    }
  }
}

TEST_CASE("each element is off by 1/254 of the largest in its block at most") {
  TestBound(WireFormat::kInt8);
}

TEST_CASE("as int4 it is off by 1/14 of the largest in its half at most") {
  TestBound(WireFormat::kInt4);
}

TEST_CASE("no block is packed as nothing") {
  for (WireFormat format : kFormats) {
    std::byte untouched{7};
    Pack(format, DataType::kFloat32, nullptr, 0, &untouched);
    Unpack(format, DataType::kFloat32, &untouched, 0, nullptr);
    CHECK(untouched == std::byte{7});
  }
}

TEST_CASE("packed blocks are a quarter or an eighth of float32, and 4 bytes") {
  CHECK(PackedBytes(WireFormat::kInt8, DataType::kFloat32) == 132);
  CHECK(PackedBytes(WireFormat::kInt8, DataType::kBfloat16) == 132);
  CHECK(PackedBytes(WireFormat::kInt8, DataType::kFloat64) == 136);
  for (DataType dtype : kDtypes) {
    CHECK(PackedBytes(WireFormat::kInt4, dtype) == 68);
  }
}

TEST_CASE("the largest of a block, its negative and zeros stay") {
  for (DataType dtype : kDtypes) {
    for (WireFormat format : kFormats) {
      const Reals sent =
          Sent(format, dtype, BlockOf({1.0, -1.0, 0.0, -0.0, 0.001}));
      const double precision = format == WireFormat::kInt4 ? 1.0 / 16 : 1e-6;
      CHECK(sent[0] == doctest::Approx(1.0).epsilon(precision));
      CHECK(sent[1] == -sent[0]);
      for (size_t i = 2; i < sent.size(); ++i) CHECK(sent[i] == 0);
    }
  }
}

TEST_CASE("ties go to the even integer") {
  // With 127, or 7, in the block, the scale is 1.
  for (WireFormat format : kFormats) {
    const double largest = LevelsOf(format) / 2;
    const Reals sent =
        Sent(format, DataType::kFloat32,
             BlockOf({largest, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5}));
    CHECK(Reals(sent.begin(), sent.begin() + 7) ==
          Reals{largest, 0, 2, 2, 0, -2, -2});
  }
}

TEST_CASE(
    "as int4 each half of a block has its scale, and each value a place") {
  Reals values;
  for (size_t i = 0; i < kPackedElements; ++i) {
    const double unit = i < kInt4Elements ? 1.0 : 4096.0;
    values.push_back(unit * (static_cast<double>(i * 5 % 15) - 7));
  }
  for (DataType dtype : kDtypes) {
    CHECK(Sent(WireFormat::kInt4, dtype, values) == values);
  }
}

TEST_CASE("a block's scale is its own") {
  Reals values = BlockOf({}, 1e-6);
  for (double value : BlockOf({}, 1e6)) values.push_back(value);
  const Reals sent = Sent(WireFormat::kInt8, DataType::kFloat32, values);
  CHECK(sent[kPackedElements - 1] == doctest::Approx(1e-6).epsilon(1e-5));
  CHECK(sent[kPackedElements] == doctest::Approx(1e6).epsilon(1e-5));
}

TEST_CASE("the smallest and largest numbers stay finite") {
  for (WireFormat format : kFormats) {
    // The scale of int4 is cut off.
    const double precision = format == WireFormat::kInt4 ? 1.0 / 16 : 1e-6;
    for (DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      CAPTURE(DataTypeName(dtype));
      const bool is_wide = dtype == DataType::kFloat64;
      const double tiny = is_wide ? 0x1p-1000 : 0x1p-100;
      const double denormal = is_wide ? 0x1p-1070 : 0x1p-149;
      const double largest = is_wide ? 1.7e308 : 3.4e38;
      CHECK(Sent(format, dtype, BlockOf({}, denormal)) == BlockOf({}, 0));
      CHECK(Sent(format, dtype, BlockOf({}, tiny / 2)) == BlockOf({}, 0));
      CHECK(Sent(format, dtype, BlockOf({tiny}))[0] ==
            doctest::Approx(tiny).epsilon(precision));
      CHECK(Sent(format, dtype, BlockOf({largest, denormal}))[0] ==
            doctest::Approx(largest).epsilon(precision));
    }
    // Denormals of float16 are no small numbers here.
    const Reals small = BlockOf({}, 7 * 0x1p-24);
    CHECK(Sent(format, DataType::kFloat16, small) == small);
  }
}

TEST_CASE("infinities stay, and nothing else beside them is a number") {
  for (WireFormat format : kFormats) {
    const size_t n = ElementsOf(format);
    for (DataType dtype : kDtypes) {
      for (size_t place : {size_t{0}, size_t{37}, n - 1}) {
        for (double value : {kInfinity, -kInfinity, std::nan("")}) {
          Reals values(2 * kPackedElements, 2.0);
          values[place] = value;
          const Reals sent = Sent(format, dtype, values);
          for (size_t i = 0; i < n; ++i) {
            if (i == place && value == value) {
              CHECK(sent[i] == value);
            } else {
              CHECK(std::isnan(sent[i]));
            }
          }
          CHECK(sent[n] == doctest::Approx(2.0).epsilon(1.0 / 16));
        }
      }
    }
  }
}

TEST_CASE("with a residual, what is sent catches up with what was brought") {
  for (DataType dtype : kDtypes) {
    CAPTURE(DataTypeName(dtype));
    const size_t num_blocks = 17;
    const Bytes bytes = AsDtype(dtype, SomeValues(num_blocks, 3));
    const Reals values = AsReals(dtype, bytes);
    Bytes residual(values.size() * RealBytes(dtype));  // zeros
    Reals total(values.size());
    constexpr int kCalls = 40;
    for (int call = 0; call < kCalls; ++call) {
      // As reals: rounding to a half is no part of the packing.
      const DataType real =
          dtype == DataType::kFloat64 ? dtype : DataType::kFloat32;
      const Reals sent = AsReals(
          real,
          Unpacked(WireFormat::kInt4, real,
                   Packed(WireFormat::kInt4, dtype, bytes, residual.data())));
      for (size_t i = 0; i < total.size(); ++i) total[i] += sent[i];
    }
    double worst = 0;
    for (size_t i = 0; i < total.size(); ++i) {
      const double lost = std::fabs(kCalls * values[i] - total[i]);
      const double largest = LargestBeside(WireFormat::kInt4, values, i);
      worst = std::max(worst, lost / largest);
    }
    // One rounding, of values that a residual has made a little larger.
    CHECK(worst < 1.2 / 14);
    CHECK(worst > 0.5 / 14);
  }
}

TEST_CASE("a residual forgets what is no number") {
  for (WireFormat format : kFormats) {
    Reals values(2 * kPackedElements, 2.0);
    values[3] = std::nan("");
    values[kPackedElements] = kInfinity;
    values[kPackedElements - 1] = 1.3;
    std::vector<float> residual(values.size(), 0.25F);
    Packed(format, DataType::kFloat32, AsDtype(DataType::kFloat32, values),
           residual.data());
    for (float lost : residual) CHECK(std::isfinite(lost));
    CHECK(residual[3] == 0);
    CHECK(residual[kPackedElements] == 0);
    CHECK(residual[kPackedElements + 1] == 0);
    // The half of a block without them keeps what it has lost.
    const bool is_apart = format == WireFormat::kInt4;
    CHECK((residual[kPackedElements - 1] != 0) == is_apart);
  }
}

struct Case {
  ReduceOp op;
  double postscale;
  int num_ranks;
  double factor;
};

void TestSums(WireFormat format) {
  for (DataType dtype : kDtypes) {
    for (const Case& c : {Case{ReduceOp::kSum, 1.0, 6, 1.0},
                          Case{ReduceOp::kSum, 0.25, 6, 0.25},
                          Case{ReduceOp::kAverage, 1.0, 6, 1.0 / 6}}) {
      for (int num_hosts : {2, 3}) {
        const size_t num_blocks = 17;
        const int own = num_hosts - 2;
        std::vector<Bytes> sources;
        std::vector<Reals> values;
        std::vector<const void*> pointers;
        for (int host = 0; host < num_hosts; ++host) {
          const unsigned seed = static_cast<unsigned>(host) + 1;
          sources.push_back(AsDtype(dtype, SomeValues(num_blocks, seed)));
          values.push_back(AsReals(dtype, sources.back()));
          if (host != own) {
            sources.back() = Packed(format, dtype, sources.back());
          }
        }
        for (const Bytes& source : sources) pointers.push_back(source.data());
        ReduceSpec spec;
        spec.dtype = dtype;
        spec.op = c.op;
        spec.postscale = c.postscale;
        spec.num_ranks = c.num_ranks;
        spec.wire_format = format;
        Bytes out = sources[static_cast<size_t>(own)];
        Bytes packed(num_blocks * PackedBytes(format, dtype));
        pointers[static_cast<size_t>(own)] = out.data();  // in place
        ReducePacked(spec, pointers.data(), num_hosts, own, num_blocks,
                     out.data(), packed.data());
        CHECK(Unpacked(format, dtype, packed) == out);
        const Reals result = AsReals(dtype, out);
        Reals exact(result.size());
        for (const Reals& of_host : values) {
          for (size_t i = 0; i < exact.size(); ++i) {
            exact[i] += c.factor * of_host[i];
          }
        }
        double worst = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
          double bound = 0;
          for (int host = 0; host < num_hosts; ++host) {
            if (host == own) continue;
            bound +=
                c.factor / LevelsOf(format) *
                LargestBeside(format, values[static_cast<size_t>(host)], i);
          }
          // The result has the error of what was sent.
          const double largest = LargestBeside(format, exact, i);
          bound += (largest + bound) / LevelsOf(format);
          bound += Rounding(dtype, 3 * largest);
          worst = std::max(worst, std::fabs(result[i] - exact[i]) / bound);
        }
        CHECK(worst <= 1.0);
      }
    }
  }
}

TEST_CASE("sums keep to the bound, and the owner has what others unpack") {
  TestSums(WireFormat::kInt8);
  TestSums(WireFormat::kInt4);
}

TEST_CASE("a sum that is no number travels") {
  constexpr DataType kDtype = DataType::kFloat32;
  const Bytes bad = AsDtype(kDtype, BlockOf({kInfinity, std::nan("")}));
  const Bytes good = AsDtype(kDtype, BlockOf({1.0}));
  for (WireFormat format : kFormats) {
    ReduceSpec spec;
    spec.wire_format = format;
    for (int own : {0, 1}) {
      // The host at `own` has its values whole; either one may be bad.
      for (bool own_is_bad : {false, true}) {
        const Bytes& whole = own_is_bad ? bad : good;
        const Bytes packed = Packed(format, kDtype, own_is_bad ? good : bad);
        const void* sources[] = {packed.data(), packed.data()};
        sources[own] = whole.data();
        Bytes out(whole.size());
        Bytes result(packed.size());
        ReducePacked(spec, sources, 2, own, 1, out.data(), result.data());
        CHECK(AsReals(kDtype, out)[0] == kInfinity);
        CHECK(std::isnan(AsReals(kDtype, out)[1]));
      }
    }
  }
}

}  // namespace
}  // namespace hvd
