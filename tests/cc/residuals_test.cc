// Residuals of int4: what a call loses comes with the next one of its name, on
// all ranks alike; when they begin anew, and when they go.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/collectives/wire/residuals.h"

namespace hvd {
namespace {

using Floats = std::vector<float>;
using Layout = std::vector<std::vector<int>>;

const Layout kLayouts[] = {{{0, 1}, {2, 3}}, {{0, 3}, {1}, {2, 4}}};
// The last one travels as it is.
const std::vector<size_t> kLengths = {40001, 4096, 5000, 100};
constexpr int kCalls = 30;

Floats Noise(int rank, size_t length) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  Floats values(length);
  for (float& value : values) value = normal(generator);
  return values;
}

Floats Average(Collectives* t, const Floats& values, uint64_t key) {
  Floats result(values.size());
  ReduceSpec spec;
  spec.op = ReduceOp::kAverage;
  spec.num_ranks = t->size();
  spec.wire_format = WireFormat::kInt4;
  REQUIRE_OK(
      t->Allreduce(TensorList({ListTensor{values.data(), result.data(),
                                          values.size() * sizeof(float), key}}),
                   spec));
  return result;
}

// The mean over the elements of |mean over calls - exact average|.
double MeanError(int size, const std::vector<Floats>& results) {
  const size_t length = results[0].size();
  std::vector<double> error(length);
  for (int rank = 0; rank < size; ++rank) {
    const Floats values = Noise(rank, length);
    for (size_t i = 0; i < length; ++i) {
      error[i] -= static_cast<double>(values[i]) / size;
    }
  }
  for (const Floats& result : results) {
    for (size_t i = 0; i < length; ++i) {
      error[i] +=
          static_cast<double>(result[i]) / static_cast<double>(results.size());
    }
  }
  double sum = 0;
  for (double e : error) sum += std::fabs(e);
  return sum / static_cast<double>(length);
}

TEST_CASE("with a key, the mean over calls comes close to the exact one") {
  for (const Layout& layout : kLayouts) {
    RunHosts(layout, [](Collectives* t) {
      const Floats values = Noise(t->rank(), 40001);
      std::vector<Floats> with_key;
      std::vector<Floats> without;
      for (int call = 0; call < kCalls; ++call) {
        with_key.push_back(Average(t, values, 7));
        without.push_back(Average(t, values, 0));
      }
      const double error = MeanError(t->size(), without);
      CHECK(error > 0.02);
      CHECK(MeanError(t->size(), with_key) < error / 8);
      CHECK(without[0] == without[kCalls - 1]);
    });
  }
}

TEST_CASE("all ranks get equal bits in each call, whatever runs together") {
  for (const Layout& layout : kLayouts) {
    // By call, then by tensor.
    std::vector<std::vector<Floats>> together(kCalls);
    std::vector<std::vector<Floats>> alone(kCalls);
    RunHosts(layout, [&](Collectives* t) {
      for (int call = 0; call < kCalls; ++call) {
        std::vector<Floats> inputs;
        std::vector<Floats> outputs;
        for (size_t length : kLengths) {
          inputs.push_back(Noise(t->rank() + 10 * call, length));
          outputs.emplace_back(length);
        }
        std::vector<ListTensor> list;
        for (size_t k = 0; k < inputs.size(); ++k) {
          list.push_back({inputs[k].data(), outputs[k].data(),
                          inputs[k].size() * sizeof(float), k + 1});
        }
        ReduceSpec spec;
        spec.op = ReduceOp::kAverage;
        spec.num_ranks = t->size();
        spec.wire_format = WireFormat::kInt4;
        REQUIRE_OK(t->Allreduce(TensorList(list), spec));
        for (const Floats& own : outputs) {
          Floats of_root = own;
          const size_t num_bytes = own.size() * sizeof(float);
          REQUIRE_OK(t->Broadcast(
              TensorList(
                  {ListTensor{of_root.data(), of_root.data(), num_bytes}}),
              t->size() - 1));
          CHECK(of_root == own);
        }
        if (t->rank() == 0) together[static_cast<size_t>(call)] = outputs;
        // Other keys, one by one, in another order.
        for (size_t k = inputs.size(); k-- > 0;) {
          outputs[k] = Average(t, inputs[k], k + 101);
        }
        if (t->rank() == 0) alone[static_cast<size_t>(call)] = outputs;
      }
    });
    CHECK(together == alone);
  }
}

TEST_CASE("a step that is no number leaves none behind") {
  RunHosts(kLayouts[0], [](Collectives* t) {
    Floats values = Noise(t->rank(), 10000);
    Average(t, values, 1);
    Average(t, values, 1);
    Floats bad = values;
    if (t->rank() == 3) {
      bad[0] = std::nanf("");
      bad[6000] = HUGE_VALF;
    }
    const Floats result = Average(t, bad, 1);
    CHECK(std::isnan(result[0]));
    CHECK(result[6000] == HUGE_VALF);
    for (float value : Average(t, values, 1)) CHECK(std::isfinite(value));
  });
}

TEST_CASE("a tensor of another shape begins anew") {
  RunHosts(kLayouts[1], [](Collectives* t) {
    const Floats values = Noise(t->rank(), 10000);
    const Floats longer = Noise(t->rank(), 12345);
    const Floats first = Average(t, values, 1);
    Average(t, values, 1);
    CHECK(Average(t, values, 1) != first);
    Average(t, longer, 1);
    CHECK(Average(t, values, 1) == first);
  });
}

WireJob JobOf(const std::vector<WireJob::Tensor>& tensors) {
  WireJob job;
  job.reduces = job.gathers = true;
  job.spec.wire_format = WireFormat::kInt4;
  job.bytes = {0, 0};
  for (int host = 0; host < 2; ++host) {
    const size_t unit = UnitOf(job.spec);
    for (const WireJob::Tensor& t : tensors) {
      job.bytes[static_cast<size_t>(host)] +=
          DivideUp(PartOf(t.num_bytes, 2, host, unit).size(), unit) * unit;
    }
  }
  job.tensors = tensors;
  return job;
}

// The residual of the first unit of host 0's block.
void* FirstOf(const Residuals& residuals, const WireJob& job) {
  void* found = nullptr;
  residuals.ForEachRun(0, Range{0, UnitOf(job.spec)}, UnitOf(job.spec),
                       [&](size_t first, size_t count, void* residual) {
                         CHECK(first == 0);
                         CHECK(count == 1);
                         found = residual;
                       });
  return found;
}

TEST_CASE("a name takes memory from its second call on, until it is idle") {
  Residuals residuals;
  const WireJob job = JobOf({{5, 20000}});
  residuals.Prepare(job);
  CHECK(FirstOf(residuals, job) == nullptr);
  residuals.Prepare(job);
  void* const memory = FirstOf(residuals, job);
  CHECK(memory != nullptr);
  residuals.Prepare(job);
  CHECK(FirstOf(residuals, job) == memory);
  for (uint64_t i = 0; i < Residuals::kMostIdleJobs + 2048; ++i) {
    residuals.Prepare(JobOf({{100 + i, 20000}}));
  }
  CHECK(residuals.num_tensors() <= Residuals::kMostIdleJobs + 1024);
  residuals.Prepare(job);
  CHECK(FirstOf(residuals, job) == nullptr);
}

TEST_CASE("two tensors of one key in a job do not share a residual") {
  Residuals residuals;
  const WireJob job = JobOf({{5, 20000}, {5, 40000}});
  for (int call = 0; call < 3; ++call) {
    residuals.Prepare(job);
    size_t num_units = 0;
    residuals.ForEachRun(1, Range{0, job.bytes[1]}, UnitOf(job.spec),
                         [&](size_t first, size_t count, void* residual) {
                           CHECK(first == num_units);
                           if (num_units > 0) CHECK(residual == nullptr);
                           num_units += count;
                         });
    CHECK(num_units * UnitOf(job.spec) == job.bytes[1]);
  }
}

TEST_CASE("a job whose tensors do not fit its blocks makes no sense") {
  WireJob job = JobOf({{5, 20000}});
  for (int i = 0; i < 2; ++i) {
    std::vector<uint8_t> bytes;
    Encode(job, &bytes);
    size_t offset = 0;
    WireJob decoded;
    bool found = false;
    const Status status = Decode(bytes, &offset, 2, &decoded, &found);
    CHECK(status.ok() == (i == 0));
    if (i == 0) {
      CHECK(found);
      CHECK(decoded.tensors[0].key == 5);
      CHECK(decoded.tensors[0].num_bytes == 20000);
    }
    job.tensors[0].num_bytes += 128 * 2 * sizeof(float);
  }
}

}  // namespace
}  // namespace hvd
