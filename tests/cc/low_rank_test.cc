// Matrices as thin factors: their arithmetic, and calls over several hosts,
// with equal bits on all ranks.
#include "tf_ops/collectives/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/collectives/wire/low_rank_job.h"

namespace hvd {
namespace {

using Floats = std::vector<float>;
using Layout = std::vector<std::vector<int>>;

const Layout kLayouts[] = {{{0, 1}, {2, 3}}, {{0, 3}, {1}, {2, 4}}};
constexpr WireFormat PowerSgd(int rank, bool alternates = false) {
  return static_cast<WireFormat>((alternates ? 0x60 : 0x40) | rank);
}

Floats Noise(unsigned seed, size_t length) {
  std::mt19937 generator(seed + 1);
  std::normal_distribution<float> normal;
  Floats values(length);
  for (float& value : values) value = normal(generator);
  return values;
}

// A matrix that is the product of two factors.
Floats Product(unsigned seed, const MatrixShape& shape, size_t rank) {
  const Floats left = Noise(seed, rank * shape.rows);
  const Floats right = Noise(seed + 100, rank * shape.columns);
  Floats residual(shape.num_elements());
  Floats product(shape.num_elements());
  Expand(left.data(), right.data(), shape, rank, 0, product.size(), 1.0f,
         residual.data(), product.data());
  return product;
}

TEST_CASE("a tensor is cut where rows and columns are fewest") {
  const auto check = [](const Shape& shape, size_t rows, size_t columns) {
    const MatrixShape matrix = MatrixOf(shape);
    CHECK(matrix.rows == rows);
    CHECK(matrix.columns == columns);
  };
  check({}, 1, 1);
  check({7}, 1, 7);
  check({3, 0, 5}, 1, 0);
  check({256, 128}, 256, 128);
  check({3, 3, 64, 128}, 576, 128);  // a kernel of Keras
  check({128, 64, 3, 3}, 128, 576);  // of torch
  CHECK(IsWorthLowRank({100, 100}, 4));
  CHECK(!IsWorthLowRank({100, 15}, 7));
  CHECK(!IsWorthLowRank({1, 10000}, 2));
}

TEST_CASE("products are those of the definition") {
  const MatrixShape shape{37, 53};
  const size_t rank = 3;
  const Floats matrix = Noise(1, shape.num_elements());
  const Floats right = Noise(2, rank * shape.columns);
  const Floats left = Noise(3, rank * shape.rows);
  Floats times_right(rank * shape.rows);
  Floats times_left(rank * shape.columns, 7.0f);
  MultiplyRight(matrix.data(), shape, rank, right.data(), times_right.data());
  MultiplyLeft(matrix.data(), shape, rank, left.data(), times_left.data());
  for (size_t k = 0; k < rank; ++k) {
    for (size_t i = 0; i < shape.rows; ++i) {
      double sum = 0;
      for (size_t j = 0; j < shape.columns; ++j) {
        sum += static_cast<double>(matrix[i * shape.columns + j]) *
               static_cast<double>(right[k * shape.columns + j]);
      }
      CHECK(static_cast<double>(times_right[k * shape.rows + i]) ==
            doctest::Approx(sum).epsilon(1e-4));
    }
    for (size_t j = 0; j < shape.columns; ++j) {
      double sum = 0;
      for (size_t i = 0; i < shape.rows; ++i) {
        sum += static_cast<double>(matrix[i * shape.columns + j]) *
               static_cast<double>(left[k * shape.rows + i]);
      }
      CHECK(static_cast<double>(times_left[k * shape.columns + j]) ==
            doctest::Approx(sum).epsilon(1e-4));
    }
  }
}

TEST_CASE("vectors become orthonormal, also those that depend or are zero") {
  constexpr size_t kLength = 50;
  for (int kind = 0; kind < 4; ++kind) {
    Floats vectors = Noise(5, 4 * kLength);
    if (kind == 1) std::fill(vectors.begin(), vectors.end(), 0.0f);
    if (kind == 2) {
      for (size_t i = 0; i < kLength; ++i) {
        vectors[2 * kLength + i] = vectors[i] - 3 * vectors[kLength + i];
      }
    }
    if (kind == 3) vectors[7] = std::numeric_limits<float>::quiet_NaN();
    Orthonormalize(4, kLength, 9, vectors.data());
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = 0; b <= a; ++b) {
        double dot = 0;
        for (size_t i = 0; i < kLength; ++i) {
          dot += static_cast<double>(vectors[a * kLength + i]) *
                 static_cast<double>(vectors[b * kLength + i]);
        }
        CHECK(dot == doctest::Approx(a == b ? 1.0 : 0.0).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("what is drawn depends on the seed alone") {
  Floats first(1000);
  Floats second(1000);
  Draw(3, first.size(), first.data());
  Draw(3, second.size(), second.data());
  CHECK(first == second);
  Draw(4, second.size(), second.data());
  CHECK(first != second);
  double sum = 0;
  for (float value : first) {
    CHECK(value >= -1.0f);
    CHECK(value < 1.0f);
    sum += static_cast<double>(value);
  }
  CHECK(std::fabs(sum) < 100);
}

struct Matrix {
  MatrixShape shape;
  Floats values;
  uint64_t key;
};

// The average over the ranks, with equal bits on all.
std::vector<Floats> Average(Collectives* t, const std::vector<Matrix>& inputs,
                            WireFormat format) {
  std::vector<Floats> results;
  std::vector<ListTensor> list;
  for (const Matrix& m : inputs) results.emplace_back(m.values.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Matrix& m = inputs[k];
    list.push_back({m.values.data(), results[k].data(),
                    m.values.size() * sizeof(float), m.key, m.shape.rows});
  }
  ReduceSpec spec;
  spec.op = ReduceOp::kAverage;
  spec.num_ranks = t->size();
  spec.wire_format = format;
  REQUIRE_OK(t->Allreduce(TensorList(list), spec));
  for (const Floats& own : results) {
    Floats of_root = own;
    REQUIRE_OK(
        t->Broadcast(TensorList({ListTensor{of_root.data(), of_root.data(),
                                            own.size() * sizeof(float)}}),
                     t->size() - 1));
    CHECK(std::memcmp(of_root.data(), own.data(), own.size() * sizeof(float)) ==
          0);
  }
  return results;
}

// |a - b| / |b| as vectors.
double Distance(const Floats& a, const Floats& b) {
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    length += y * y;
  }
  return std::sqrt(difference / length);
}

Floats MeanOver(int size, const std::function<Floats(int)>& of_rank) {
  Floats mean = of_rank(0);
  for (int rank = 1; rank < size; ++rank) {
    const Floats values = of_rank(rank);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += values[i];
  }
  for (float& value : mean) value /= static_cast<float>(size);
  return mean;
}

TEST_CASE("a mean of low rank comes at once") {
  // Several chunks, and rows that no chunk ends with.
  const MatrixShape shape{611, 403};
  for (const Layout& layout : kLayouts) {
    RunHosts(layout, [&](Collectives* t) {
      for (bool alternates : {false, true}) {
        const Floats all = Product(1, shape, 2);
        Matrix own{shape, all, 1u + alternates};
        for (float& value : own.values) {
          value *= static_cast<float>(t->rank() + 1);
        }
        const auto of_rank = [&](int rank) {
          Floats values = all;
          for (float& value : values) value *= static_cast<float>(rank + 1);
          return values;
        };
        const Floats mean = MeanOver(t->size(), of_rank);
        // ACP-SGD finds in the second call what one factor alone does not.
        for (int call = 0; call < 4; ++call) {
          const Floats result = Average(t, {own}, PowerSgd(4, alternates))[0];
          if (!alternates) CHECK(Distance(result, mean) < 1e-4);
        }
      }
    });
  }
}

TEST_CASE("with residuals, sums over calls come close to the exact ones") {
  const MatrixShape shape{96, 64};
  constexpr int kCalls = 200;
  for (const Layout& layout : kLayouts) {
    RunHosts(layout, [&](Collectives* t) {
      const auto of_rank = [&](int rank) {
        return Noise(static_cast<unsigned>(rank), shape.num_elements());
      };
      const Floats mean = MeanOver(t->size(), of_rank);
      for (bool alternates : {false, true}) {
        Floats sum(mean.size());
        Floats first;
        for (int call = 0; call < kCalls; ++call) {
          const Floats result =
              Average(t, {{shape, of_rank(t->rank()), 1u + alternates}},
                      PowerSgd(4, alternates))[0];
          if (call == 0) first = result;
          for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += result[i] / kCalls;
          }
        }
        CHECK(Distance(first, mean) > 0.5);
        CHECK(Distance(sum, mean) < 0.25);
      }
    });
  }
}

TEST_CASE("what runs together changes no bit; small ones stay exact") {
  const std::vector<MatrixShape> shapes = {
      {96, 64}, {1, 500}, {200, 300}, {5, 900}, {64, 96}};
  std::vector<Floats> results[2];
  for (bool alone : {false, true}) {
    RunHosts(kLayouts[1], [&](Collectives* t) {
      for (int call = 0; call < 4; ++call) {
        const auto noise_of = [&](int rank, size_t k) {
          return Noise(static_cast<unsigned>(rank + 10 * call),
                       shapes[k].num_elements());
        };
        std::vector<Matrix> inputs;
        for (size_t k = 0; k < shapes.size(); ++k) {
          inputs.push_back({shapes[k], noise_of(t->rank(), k), k + 1});
        }
        std::vector<Floats> outputs(shapes.size());
        if (alone) {
          for (size_t k = shapes.size(); k-- > 0;) {
            outputs[k] = Average(t, {inputs[k]}, PowerSgd(3))[0];
          }
        } else {
          outputs = Average(t, inputs, PowerSgd(3));
        }
        for (size_t k : {1u, 3u}) {
          const Floats exact =
              MeanOver(t->size(), [&](int rank) { return noise_of(rank, k); });
          CHECK(Distance(outputs[k], exact) < 1e-6);
        }
        if (t->rank() != 0) continue;
        for (Floats& output : outputs) {
          results[alone].push_back(std::move(output));
        }
      }
    });
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("what is no number reaches all ranks, and is forgotten") {
  const MatrixShape shape{96, 64};
  for (bool alternates : {false, true}) {
    RunHosts(kLayouts[0], [&](Collectives* t) {
      const Matrix good{shape, Noise(static_cast<unsigned>(t->rank()), 96 * 64),
                        7};
      for (double value : {HUGE_VAL, std::nan("")}) {
        Average(t, {good}, PowerSgd(4, alternates));
        Matrix bad = good;
        if (t->rank() == 3) bad.values[100] = static_cast<float>(value);
        const std::vector<Floats> none =
            Average(t, {bad}, PowerSgd(4, alternates));
        for (float x : none[0]) {
          CHECK(std::isnan(x));
        }
        for (int call = 0; call < 2; ++call) {
          const std::vector<Floats> some =
              Average(t, {good}, PowerSgd(4, alternates));
          for (float x : some[0]) {
            CHECK(std::isfinite(x));
          }
        }
      }
    });
  }
}

TEST_CASE("zeros stay zeros, and do not end what comes after them") {
  const MatrixShape shape{96, 64};
  RunHosts(kLayouts[0], [&](Collectives* t) {
    for (bool alternates : {false, true}) {
      const uint64_t key = 1u + alternates;
      const Matrix zeros{shape, Floats(96 * 64), key};
      for (int call = 0; call < 3; ++call) {
        CHECK(Average(t, {zeros}, PowerSgd(4, alternates))[0] == zeros.values);
      }
      const Floats product = Product(3, shape, 2);
      Floats result;
      for (int call = 0; call < 4; ++call) {
        result =
            Average(t, {{shape, product, key}}, PowerSgd(4, alternates))[0];
      }
      CHECK(Distance(result, product) < 0.7);
      CHECK(Distance(result, Floats(product.size(), 1e-9f)) > 1.0);
    }
  });
}

TEST_CASE("halves become factors, and float64 and other sums stay exact") {
  const MatrixShape shape{96, 64};
  RunHosts(kLayouts[0], [&](Collectives* t) {
    const Floats product = Product(3, shape, 2);
    for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
      std::vector<uint16_t> values(product.size());
      NarrowToHalves(dtype, product.data(), values.data(), values.size());
      Floats rounded(product.size());
      WidenHalves(dtype, values.data(), rounded.data(), values.size());
      ReduceSpec spec;
      spec.op = ReduceOp::kAverage;
      spec.dtype = dtype;
      spec.num_ranks = t->size();
      spec.wire_format = PowerSgd(4);
      REQUIRE_OK(t->Allreduce(
          TensorList({ListTensor{values.data(), values.data(),
                                 2 * values.size(), 11, shape.rows}}),
          spec));
      Floats result(product.size());
      WidenHalves(dtype, values.data(), result.data(), values.size());
      CHECK(Distance(result, rounded) < 0.02);
    }
    std::vector<double> doubles(96 * 64, 1.0 / 3);
    ReduceSpec spec;
    spec.dtype = DataType::kFloat64;
    spec.num_ranks = t->size();
    spec.wire_format = PowerSgd(4);
    REQUIRE_OK(t->Allreduce(
        TensorList({ListTensor{doubles.data(), doubles.data(),
                               8 * doubles.size(), 12, shape.rows}}),
        spec));
    for (double value : doubles) CHECK(value == doctest::Approx(4.0 / 3));
  });
}

TEST_CASE("a job whose matrices do not fit makes no sense") {
  WireJob job;
  job.kind = WireJob::Kind::kLowRank;
  job.spec.wire_format = PowerSgd(4);
  job.tensors = {{5, 96 * 64 * sizeof(float), 96}};
  job.bytes = {96 * 64 * sizeof(float)};
  const auto makes_sense = [](const WireJob& one) {
    std::vector<uint8_t> bytes;
    Encode(one, &bytes);
    size_t offset = 0;
    WireJob decoded;
    bool found = false;
    return Decode(bytes, &offset, 2, &decoded, &found).ok();
  };
  CHECK(makes_sense(job));
  WireJob other = job;
  other.tensors[0].rows = 0;
  CHECK(!makes_sense(other));
  other.tensors[0].rows = 95;
  CHECK(!makes_sense(other));
  other = job;
  other.bytes[0] += 4;
  CHECK(!makes_sense(other));
  other = job;
  other.spec.wire_format = static_cast<WireFormat>(0x60);
  CHECK(!makes_sense(other));
}

}  // namespace
}  // namespace hvd
