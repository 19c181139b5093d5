// Compares the core's collectives, without TensorFlow and without the engine,
// with the memory traffic that they need.
//
//   core_benchmark RANKS ROUNDS SHAPES.json
//
// Prints a JSON line for each case: the median and the minimum over all calls
// of rank 0, in ms, and the ratio of the median to that of its bound. The cases
// take turns within a round, so that other work on the machine hits all alike.
//
// The bound of an allreduce in place is a loop that adds 1 to each element:
// both read and write each byte of the tensors on each rank. The bound of an
// allreduce into other tensors is a copy: both read one and write the other.
// All ranks run the bounds at the same time. They hold for tensors larger than
// the caches.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cc/rank_processes.h"
#include "tf_ops/collectives/host/allgather.h"
#include "tf_ops/collectives/host/allreduce.h"
#include "tf_ops/collectives/host/alltoall.h"
#include "tf_ops/collectives/host/broadcast.h"
#include "tf_ops/collectives/host/reducescatter.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCallsARound = 5;
constexpr size_t kLargeBytes = 64 << 20;

// Reads shapes, the first list of lists of numbers in a JSON file, and returns
// their numbers of elements.
std::vector<size_t> ReadCounts(const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<size_t> counts;
  size_t number = 0, product = 1;
  int depth = 0;
  for (char c : text) {
    if (c >= '0' && c <= '9' && depth == 2) {
      number = 10 * number + static_cast<size_t>(c - '0');
    } else if (c == '[') {
      ++depth;
    } else if (depth == 2 && (c == ',' || c == ']')) {
      product *= number;
      number = 0;
      if (c == ',') continue;
      counts.push_back(product);
      product = 1;
      --depth;
    } else if (c == ']') {
      break;
    }
  }
  return counts;
}

// Tensors of float32, and the tensors for their sums.
class Tensors {
 public:
  Tensors(const std::vector<size_t>& counts, bool in_place) {
    std::vector<ListTensor> list;
    for (size_t count : counts) {
      inputs_.emplace_back(count, 0.0f);
      outputs_.emplace_back(in_place ? 0 : count, 0.0f);
      float* in = inputs_.back().data();
      float* out = in_place ? in : outputs_.back().data();
      list.push_back(ListTensor{in, out, count * sizeof(float)});
    }
    list_ = std::make_unique<TensorList>(list);
  }

  const TensorList& list() const { return *list_; }

 private:
  std::vector<std::vector<float>> inputs_, outputs_;
  std::unique_ptr<TensorList> list_;
};

struct Case {
  std::string name;
  std::string bound;  // name of another case
  size_t num_bytes;
  int repeats;  // in one timed call
  std::function<void()> run;
  std::vector<double> times = {};  // ms
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Benchmark {
 public:
  Benchmark(HostSlabs* slabs, const std::vector<size_t>& shapes)
      : slabs_(slabs), shapes_(shapes) {
    spec_.num_ranks = slabs->size();
    size_t num_elements = 0;
    for (size_t count : shapes_) num_elements += count;
    AddIncrement("increment of ResNet-50", num_elements);
    AddReduce("161 gradients of ResNet-50, in place", "increment of ResNet-50",
              shapes_, true);
    AddCopy("copy of ResNet-50", num_elements);
    AddReduce("161 gradients of ResNet-50", "copy of ResNet-50", shapes_,
              false);
    AddReduce("1000 tensors of 1 KB", "", std::vector<size_t>(1000, 256), true);
    AddIncrement("increment of 64 MiB", kLargeBytes / 4);
    AddReduce("64 MiB, in place", "increment of 64 MiB", {kLargeBytes / 4},
              true);
    AddCopy("copy of 64 MiB", kLargeBytes / 4);
    AddReduce("64 MiB", "copy of 64 MiB", {kLargeBytes / 4}, false);
    AddReduce("1 MiB, in place", "", {1 << 18}, true);
    AddReduce("256 KiB, in place", "", {1 << 16}, true);
    AddReduce("64 KiB, in place", "", {1 << 14}, true);
    AddReduce("16 KiB, in place", "", {1 << 12}, true);
    AddReduce("4 KiB, in place", "", {1 << 10}, true);
    AddReduce("4 B, in place", "", {1}, true);
    AddBfloat16("64 MiB of bfloat16, in place", "increment of 64 MiB");
    AddOthers();
  }

  void RunRound() {
    for (Case& c : cases_) {
      c.run();  // fills the caches with the data of this case
      for (int call = 0; call < kCallsARound; ++call) {
        Meet();
        const Clock::time_point begin = Clock::now();
        for (int i = 0; i < c.repeats; ++i) c.run();
        const std::chrono::duration<double, std::milli> time =
            Clock::now() - begin;
        c.times.push_back(time.count() / c.repeats);
      }
    }
  }

  void Print() const {
    for (const Case& c : cases_) {
      const double median = Median(c.times);
      std::printf(
          "{\"benchmark\": \"core\", \"case\": \"%s\", \"way\": \"core\", "
          "\"ranks\": %d, \"bytes\": %zu, \"calls\": %zu, "
          "\"median_ms\": %.5f, \"min_ms\": %.5f",
          c.name.c_str(), slabs_->size(), c.num_bytes, c.times.size(), median,
          *std::min_element(c.times.begin(), c.times.end()));
      for (const Case& bound : cases_) {
        if (bound.name != c.bound) continue;
        std::printf(", \"to_bound\": %.3f", median / Median(bound.times));
      }
      std::puts("}");
    }
  }

 private:
  void Meet() {
    float x = 0;
    const TensorList one({ListTensor{&x, &x, sizeof(x)}});
    OrDie(Allreduce(slabs_, one, spec_));
  }

  void AddCopy(const std::string& name, size_t num_elements) {
    auto from = std::make_shared<std::vector<float>>(num_elements, 1.0f);
    auto to = std::make_shared<std::vector<float>>(num_elements, 0.0f);
    Add(name, "", num_elements * sizeof(float), [from, to] {
      std::memcpy(to->data(), from->data(), from->size() * sizeof(float));
    });
  }

  void AddIncrement(const std::string& name, size_t num_elements) {
    auto values = std::make_shared<std::vector<float>>(num_elements, 1.0f);
    Add(name, "", num_elements * sizeof(float), [values] {
      for (float& value : *values) value += 1.0f;
    });
  }

  void AddReduce(const std::string& name, const std::string& bound,
                 const std::vector<size_t>& counts, bool in_place) {
    auto tensors = std::make_shared<Tensors>(counts, in_place);
    Add(name, bound, tensors->list().num_bytes(),
        [this, tensors] { OrDie(Allreduce(slabs_, tensors->list(), spec_)); });
  }

  void AddBfloat16(const std::string& name, const std::string& bound) {
    auto tensors =
        std::make_shared<Tensors>(std::vector<size_t>{kLargeBytes / 4}, true);
    Add(name, bound, kLargeBytes, [this, tensors] {
      ReduceSpec spec = spec_;
      spec.dtype = DataType::kBfloat16;
      OrDie(Allreduce(slabs_, tensors->list(), spec));
    });
  }

  // The other collectives. Each rank holds 64 MiB: before a reducescatter or
  // alltoall, after an allgather or broadcast.
  void AddOthers() {
    const size_t size = static_cast<size_t>(slabs_->size());
    const size_t share = kLargeBytes / size / 64 * 64;
    auto from = std::make_shared<std::vector<std::byte>>(share * size);
    auto to = std::make_shared<std::vector<std::byte>>(share * size);
    auto parts = std::make_shared<std::vector<TensorList>>();
    auto lists = std::make_shared<AlltoallLists>();
    for (size_t rank = 0; rank < size; ++rank) {
      std::byte* in = from->data() + rank * share;
      std::byte* out = to->data() + rank * share;
      parts->push_back(TensorList({ListTensor{in, out, share}}));
      lists->send.push_back(TensorList({ListTensor{in, nullptr, share}}));
      lists->recv.push_back(TensorList({ListTensor{nullptr, out, share}}));
    }
    const ByteMatrix shares(size, std::vector<size_t>(size, share));
    Add("reducescatter of 64 MiB", "", kLargeBytes, [this, from, to, parts] {
      OrDie(Reducescatter(slabs_, *parts, spec_));
    });
    Add("alltoall of 64 MiB", "", kLargeBytes,
        [=] { OrDie(Alltoall(slabs_, *lists, shares)); });
    Add("allgather to 64 MiB", "", kLargeBytes,
        [this, from, to, parts] { OrDie(Allgather(slabs_, *parts)); });
    auto whole = std::make_shared<TensorList>(std::vector<ListTensor>{
        ListTensor{to->data(), to->data(), share * size}});
    Add("broadcast of 64 MiB", "", kLargeBytes,
        [this, to, whole] { OrDie(Broadcast(slabs_, *whole, 0)); });
  }

  void Add(const std::string& name, const std::string& bound, size_t num_bytes,
           const std::function<void()>& run) {
    const int repeats = num_bytes <= (64 << 10) ? 50 : 1;
    cases_.push_back(Case{name, bound, num_bytes, repeats, run});
  }

  HostSlabs* const slabs_;
  const std::vector<size_t> shapes_;
  ReduceSpec spec_;
  std::vector<Case> cases_;
};

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "Usage: %s RANKS ROUNDS SHAPES.json\n", argv[0]);
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const int rounds = std::atoi(argv[2]);
  const std::vector<size_t> shapes = hvd::ReadCounts(argv[3]);
  hvd::OrDie(size > 0 && rounds > 0 && !shapes.empty(), argv[3]);
  const auto statuses =
      hvd::ForkRanks(size, [&](std::unique_ptr<hvd::HostGroup> group) {
        hvd::Benchmark benchmark(group->slabs(), shapes);
        for (int round = 0; round < rounds; ++round) benchmark.RunRound();
        if (group->rank() != 0) return;
        benchmark.Print();
        std::fflush(stdout);
      });
  const bool is_well = std::all_of(statuses.begin(), statuses.end(),
                                   [](int status) { return status == 0; });
  return is_well ? 0 : 1;
}
