// Packed blocks against their promise, for each dtype: the bound of each
// element, zeros, denormals, NaN and infinities, and sums of several hosts.
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
constexpr size_t kNumBlocks[] = {1, 2, 15, 16, 17, 40};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

double LargestInBlockOf(const Reals& values, size_t i) {
  double largest = 0;
  const size_t begin = i / kPackedElements * kPackedElements;
  for (size_t j = begin; j < begin + kPackedElements; ++j) {
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

Bytes Packed(DataType dtype, const Bytes& values) {
  const size_t num_blocks =
      values.size() / (kPackedElements * ElementBytes(dtype));
  Bytes packed(num_blocks * PackedBytes(dtype));
  Pack(dtype, values.data(), num_blocks, packed.data());
  return packed;
}

Bytes Unpacked(DataType dtype, const Bytes& packed) {
  const size_t num_blocks = packed.size() / PackedBytes(dtype);
  Bytes values(num_blocks * kPackedElements * ElementBytes(dtype));
  Unpack(dtype, packed.data(), num_blocks, values.data());
  return values;
}

// What comes of values on their way.
Reals Sent(DataType dtype, const Reals& values) {
  return AsReals(dtype, Unpacked(dtype, Packed(dtype, AsDtype(dtype, values))));
}

Reals BlockOf(std::initializer_list<double> first, double rest = 0) {
  Reals values(first);
  values.resize(kPackedElements, rest);
  return values;
}

TEST_CASE("each element is off by 1/254 of the largest in its block at most") {
  for (DataType dtype : kDtypes) {
    CAPTURE(DataTypeName(dtype));
    for (size_t num_blocks : kNumBlocks) {
      CAPTURE(num_blocks);
      const Bytes bytes = AsDtype(dtype, SomeValues(num_blocks, 1));
      const Reals values = AsReals(dtype, bytes);
      const Reals sent = AsReals(dtype, Unpacked(dtype, Packed(dtype, bytes)));
      REQUIRE(sent.size() == values.size());
      double worst = 0;  // of the bound
      for (size_t i = 0; i < values.size(); ++i) {
        const double largest = LargestInBlockOf(values, i);
        const double bound = largest / 254 + Rounding(dtype, largest);
        worst = std::max(worst, std::fabs(sent[i] - values[i]) / bound);
      }
      CHECK(worst <= 1.0);
      // The bound is no wider than it must be.
      if (num_blocks > 10 && !IsHalf(dtype)) CHECK(worst > 0.95);
    }
  }
}

TEST_CASE("no block is packed as nothing") {
  std::byte untouched{7};
  Pack(DataType::kFloat32, nullptr, 0, &untouched);
  Unpack(DataType::kFloat32, &untouched, 0, nullptr);
  CHECK(untouched == std::byte{7});
}

TEST_CASE("packed blocks are a quarter of float32, and 4 bytes") {
  CHECK(PackedBytes(DataType::kFloat32) == 132);
  CHECK(PackedBytes(DataType::kBfloat16) == 132);
  CHECK(PackedBytes(DataType::kFloat64) == 136);
}

TEST_CASE("the largest of a block, its negative and zeros stay") {
  for (DataType dtype : kDtypes) {
    const Reals sent = Sent(dtype, BlockOf({1.0, -1.0, 0.0, -0.0, 0.001}));
    CHECK(sent[0] == doctest::Approx(1.0).epsilon(1e-6));
    CHECK(sent[1] == -sent[0]);
    for (size_t i = 2; i < sent.size(); ++i) CHECK(sent[i] == 0);
  }
}

TEST_CASE("ties go to the even integer") {
  // With 127 in the block, the scale is 1.
  const Reals sent =
      Sent(DataType::kFloat32, BlockOf({127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5}));
  CHECK(Reals(sent.begin(), sent.begin() + 7) ==
        Reals{127, 0, 2, 2, 0, -2, -2});
}

TEST_CASE("a block's scale is its own") {
  Reals values = BlockOf({}, 1e-6);
  for (double value : BlockOf({}, 1e6)) values.push_back(value);
  const Reals sent = Sent(DataType::kFloat32, values);
  CHECK(sent[kPackedElements - 1] == doctest::Approx(1e-6).epsilon(1e-5));
  CHECK(sent[kPackedElements] == doctest::Approx(1e6).epsilon(1e-5));
}

TEST_CASE("the smallest and largest numbers stay finite") {
  for (DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    CAPTURE(DataTypeName(dtype));
    const bool is_wide = dtype == DataType::kFloat64;
    const double tiny = is_wide ? 0x1p-1000 : 0x1p-100;
    const double denormal = is_wide ? 0x1p-1070 : 0x1p-149;
    const double largest = is_wide ? 1.7e308 : 3.4e38;
    CHECK(Sent(dtype, BlockOf({}, denormal)) == BlockOf({}, 0));
    CHECK(Sent(dtype, BlockOf({}, tiny / 2)) == BlockOf({}, 0));
    CHECK(Sent(dtype, BlockOf({tiny}))[0] ==
          doctest::Approx(tiny).epsilon(1e-6));
    CHECK(Sent(dtype, BlockOf({largest, denormal}))[0] ==
          doctest::Approx(largest).epsilon(1e-6));
  }
  // Denormals of float16 are no small numbers here.
  CHECK(Sent(DataType::kFloat16, BlockOf({}, 0x1p-24)) == BlockOf({}, 0x1p-24));
}

TEST_CASE("infinities stay, and nothing else of their block is a number") {
  for (DataType dtype : kDtypes) {
    for (size_t place : {size_t{0}, size_t{77}, kPackedElements - 1}) {
      for (double value : {kInfinity, -kInfinity, std::nan("")}) {
        Reals values = BlockOf({}, 2.0);
        values[place] = value;
        for (double next : BlockOf({}, 2.0)) values.push_back(next);
        const Reals sent = Sent(dtype, values);
        for (size_t i = 0; i < kPackedElements; ++i) {
          if (i == place && value == value) {
            CHECK(sent[i] == value);
          } else {
            CHECK(std::isnan(sent[i]));
          }
        }
        CHECK(sent[kPackedElements] == doctest::Approx(2.0).epsilon(1e-5));
      }
    }
  }
}

struct Case {
  ReduceOp op;
  double postscale;
  int num_ranks;
  double factor;
};

TEST_CASE("sums keep to the bound, and the owner has what others unpack") {
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
          if (host != own) sources.back() = Packed(dtype, sources.back());
        }
        for (const Bytes& source : sources) pointers.push_back(source.data());
        ReduceSpec spec;
        spec.dtype = dtype;
        spec.op = c.op;
        spec.postscale = c.postscale;
        spec.num_ranks = c.num_ranks;
        Bytes out = sources[static_cast<size_t>(own)];
        Bytes packed(num_blocks * PackedBytes(dtype));
        pointers[static_cast<size_t>(own)] = out.data();  // in place
        ReducePacked(spec, pointers.data(), num_hosts, own, num_blocks,
                     out.data(), packed.data());
        CHECK(Unpacked(dtype, packed) == out);
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
            bound += c.factor / 254 *
                     LargestInBlockOf(values[static_cast<size_t>(host)], i);
          }
          // The result has the error of what was sent.
          bound += (LargestInBlockOf(exact, i) + bound) / 254;
          bound += Rounding(dtype, 3 * LargestInBlockOf(exact, i));
          worst = std::max(worst, std::fabs(result[i] - exact[i]) / bound);
        }
        CHECK(worst <= 1.0);
      }
    }
  }
}

TEST_CASE("a sum that is no number travels") {
  constexpr DataType kDtype = DataType::kFloat32;
  const Bytes bad = AsDtype(kDtype, BlockOf({kInfinity, std::nan("")}));
  const Bytes good = AsDtype(kDtype, BlockOf({1.0}));
  for (int own : {0, 1}) {
    // The host at `own` has its values whole; either one may be bad.
    for (bool own_is_bad : {false, true}) {
      const Bytes& whole = own_is_bad ? bad : good;
      const Bytes packed = Packed(kDtype, own_is_bad ? good : bad);
      const void* sources[] = {packed.data(), packed.data()};
      sources[own] = whole.data();
      Bytes out(whole.size());
      Bytes result(packed.size());
      ReducePacked(ReduceSpec(), sources, 2, own, 1, out.data(), result.data());
      CHECK(AsReals(kDtype, out)[0] == kInfinity);
      CHECK(std::isnan(AsReals(kDtype, out)[1]));
    }
  }
}

}  // namespace
}  // namespace hvd
