// Packed sums over several hosts (int8, int4): equal bits on all ranks, errors
// in their bounds, and exact where nothing is packed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/cc/host_values.h"
#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/collectives/half.h"
#include "tf_ops/collectives/reduce.h"

namespace hvd {
namespace {

// The values of a rank, in tensors of these lengths.
using Tensors = std::vector<std::vector<float>>;

Tensors SomeTensors(int rank, const std::vector<size_t>& lengths) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  Tensors tensors;
  for (size_t length : lengths) {
    tensors.emplace_back(length);
    for (float& value : tensors.back()) value = normal(generator);
  }
  return tensors;
}

constexpr WireFormat kFormats[] = {WireFormat::kInt8, WireFormat::kInt4};

ReduceSpec PackedSum(const Collectives& t,
                     WireFormat format = WireFormat::kInt8) {
  ReduceSpec spec;
  spec.num_ranks = t.size();
  spec.wire_format = format;
  return spec;
}

void AllreduceAll(Collectives* t, const ReduceSpec& spec, Tensors* tensors) {
  std::vector<ListTensor> list;
  for (std::vector<float>& one : *tensors) {
    list.push_back({one.data(), one.data(), one.size() * sizeof(float)});
  }
  REQUIRE_OK(t->Allreduce(TensorList(list), spec));
}

// All ranks have the bits of the last one.
void CheckBitsAreEqual(Collectives* t, const Tensors& tensors) {
  for (std::vector<float> of_root : tensors) {
    if (of_root.empty()) continue;
    const std::vector<float> own = of_root;
    const size_t num_bytes = own.size() * sizeof(float);
    REQUIRE_OK(t->Broadcast(
        TensorList({ListTensor{of_root.data(), of_root.data(), num_bytes}}),
        t->size() - 1));
    CHECK(std::memcmp(of_root.data(), own.data(), num_bytes) == 0);
  }
}

// The largest magnitude of each `n` elements, from the tensor's beginning.
std::vector<double> LargestByBlock(const std::vector<double>& values,
                                   size_t n) {
  std::vector<double> largest((values.size() + n - 1) / n);
  for (size_t i = 0; i < values.size(); ++i) {
    largest[i / n] = std::max(largest[i / n], std::fabs(values[i]));
  }
  return largest;
}

void CheckBound(const Layout& layout, const std::vector<size_t>& lengths,
                double factor, WireFormat format, const Tensors& results) {
  const bool is_int4 = format == WireFormat::kInt4;
  const size_t n = is_int4 ? 64 : 128;
  const double levels = is_int4 ? 14 : 254;
  std::vector<std::vector<Tensors>> inputs;  // by host
  for (const std::vector<int>& ranks : layout) {
    inputs.emplace_back();
    for (int rank : ranks) inputs.back().push_back(SomeTensors(rank, lengths));
  }
  for (size_t k = 0; k < lengths.size(); ++k) {
    std::vector<double> exact(lengths[k]);
    std::vector<std::vector<double>> of_hosts;
    for (const std::vector<Tensors>& of_host : inputs) {
      of_hosts.emplace_back(lengths[k]);
      for (const Tensors& of_rank : of_host) {
        for (size_t i = 0; i < lengths[k]; ++i) {
          of_hosts.back()[i] += factor * static_cast<double>(of_rank[k][i]);
        }
      }
      for (size_t i = 0; i < lengths[k]; ++i) exact[i] += of_hosts.back()[i];
    }
    std::vector<double> bounds((lengths[k] + n - 1) / n);
    for (const std::vector<double>& of_host : of_hosts) {
      const std::vector<double> largest = LargestByBlock(of_host, n);
      for (size_t b = 0; b < bounds.size(); ++b) {
        bounds[b] += largest[b] / levels;
      }
    }
    const std::vector<double> largest = LargestByBlock(exact, n);
    for (size_t b = 0; b < bounds.size(); ++b) {
      // The owner's part is in it, too.
      bounds[b] += (largest[b] + bounds[b]) / levels;
    }
    double worst = 0;
    for (size_t i = 0; i < lengths[k]; ++i) {
      const double error =
          std::fabs(static_cast<double>(results[k][i]) - exact[i]);
      worst = std::max(worst, error / bounds[i / n]);
    }
    CAPTURE(lengths[k]);
    CHECK(worst < 1.0);
    // Small tensors travel as they are.
    CHECK((worst < 1e-3) == (lengths[k] < 4096));
  }
}

// Around a block, the shortest one that is packed, and several chunks.
const std::vector<size_t> kLengths = {0,    1,    127,  128,   129,
                                      4095, 4096, 4097, 300001};

TEST_CASE("packed: equal bits on all ranks, and each element in its bound") {
  for (const Layout& layout : kLayouts) {
    RunHosts(layout, [&layout](Collectives* t) {
      for (WireFormat format : kFormats) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          ReduceSpec spec = PackedSum(*t, format);
          spec.op = op;
          spec.prescale = 0.5;
          spec.postscale = 4.0;
          const double factor = op == ReduceOp::kSum ? 2.0 : 2.0 / t->size();
          Tensors tensors = SomeTensors(t->rank(), kLengths);
          AllreduceAll(t, spec, &tensors);
          CheckBitsAreEqual(t, tensors);
          CheckBound(layout, kLengths, factor, format, tensors);
        }
      }
    });
  }
}

TEST_CASE("packed: what runs together changes no bit") {
  RunHosts(kLayouts[1], [](Collectives* t) {
    for (WireFormat format : kFormats) {
      Tensors together = SomeTensors(t->rank(), kLengths);
      const Tensors inputs = together;
      AllreduceAll(t, PackedSum(*t, format), &together);
      for (size_t k = inputs.size(); k-- > 0;) {
        Tensors alone = {inputs[k]};
        AllreduceAll(t, PackedSum(*t, format), &alone);
        CHECK(alone[0] == together[k]);
      }
    }
  });
}

TEST_CASE("as int8: every floating dtype, with the bits of all ranks equal") {
  RunHosts(kLayouts[1], [](Collectives* t) {
    for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16,
                           DataType::kFloat32, DataType::kFloat64}) {
      CAPTURE(DataTypeName(dtype));
      ReduceSpec spec = PackedSum(*t);
      spec.dtype = dtype;
      spec.op = ReduceOp::kAverage;
      constexpr size_t kCount = 40001;
      // Powers of two of one sign: equal values of a block stay what they are.
      Bytes values;
      for (size_t i = 0; i < kCount; ++i) {
        Append(dtype, std::ldexp(1.0, static_cast<int>(i / 128 % 8)), &values);
      }
      const Bytes expected = values;
      REQUIRE_OK(t->Allreduce(
          TensorList({ListTensor{values.data(), values.data(), values.size()}}),
          spec));
      const auto at = [dtype](const Bytes& bytes, size_t i) {
        const std::byte* const from = bytes.data() + i * ElementBytes(dtype);
        if (dtype == DataType::kFloat64) {
          double value;
          std::memcpy(&value, from, sizeof(value));
          return value;
        }
        float value;
        if (dtype == DataType::kFloat32) {
          std::memcpy(&value, from, sizeof(value));
        } else {
          WidenHalves(dtype, from, &value, 1);
        }
        return static_cast<double>(value);
      };
      double worst = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const double wanted = at(expected, i);
        worst = std::max(worst, std::fabs(at(values, i) / wanted - 1.0));
      }
      CHECK(worst < 1e-6);
    }
  });
}

TEST_CASE("packed: NaN and infinities of any rank reach all ranks") {
  RunHosts(kLayouts[1], [](Collectives* t) {
    for (int i = 0; i < 2 * t->size(); ++i) {
      const int bad = i / 2;
      Tensors tensors = SomeTensors(t->rank(), {10000});
      if (t->rank() == bad) {
        tensors[0][0] = std::nanf("");
        tensors[0][5000] = -HUGE_VALF;
      }
      AllreduceAll(t, PackedSum(*t, kFormats[i % 2]), &tensors);
      CHECK(std::isnan(tensors[0][0]));
      CHECK(tensors[0][5000] == -HUGE_VALF);
      CHECK(std::isfinite(tensors[0][1000]));
      CheckBitsAreEqual(t, tensors);
    }
  });
}

}  // namespace
}  // namespace hvd
