// Every kind of collective through whole engines, as threads: values, groups,
// errors that leave the engine usable, process sets.
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

void TestBarrier(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  std::atomic<int> num_came{0};
  RunRanks(engines, [&](int, Engine* engine) {
    for (int round = 1; round <= 20; ++round) {
      num_came.fetch_add(1);
      Run(engine, ARequest(CollectiveKind::kBarrier, "b"), {});
      CHECK(num_came.load() >= round * size);
      Run(engine, ARequest(CollectiveKind::kBarrier, "c"), {});
    }
  });
}

// Rows that `rank` sends to `peer`.
int64_t RowsTo(int rank, int peer, int variant) {
  return (rank + 2 * peer + variant) % 3;
}

void TestAlltoall(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [size](int rank, Engine* engine) {
    // Known requests, and the same name with other splits.
    for (int variant : {0, 0, 0, 1, 1, 0}) {
      Request request = ARequest(CollectiveKind::kAlltoall, "a");
      Values input, expected;
      std::vector<int64_t> received;
      for (int peer = 0; peer < size; ++peer) {
        request.splits.push_back(RowsTo(rank, peer, variant));
        input.numbers.insert(input.numbers.end(),
                             2 * static_cast<size_t>(request.splits.back()),
                             100 * rank + peer);
        received.push_back(RowsTo(peer, rank, variant));
        expected.numbers.insert(expected.numbers.end(),
                                2 * static_cast<size_t>(received.back()),
                                100 * peer + rank);
      }
      input.shape = {static_cast<int64_t>(input.numbers.size() / 2), 2};
      expected.shape = {static_cast<int64_t>(expected.numbers.size() / 2), 2};
      const Outcome outcome = Run(engine, request, {input});
      CHECK(outcome.outputs[0] == expected);
      CHECK(outcome.received == received);
    }
  });
  CHECK(engines[0]->stats().num_cache_hits == 3);
}

void TestAlltoallOfEqualParts(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [size](int rank, Engine* engine) {
    for (int64_t rows : {0, 1, 50000}) {
      Values input = Fill(DataType::kInt64, {size * rows}, 0);
      Values expected = input;
      for (int64_t i = 0; i < size * rows; ++i) {
        const size_t k = static_cast<size_t>(i);
        input.numbers[k] = static_cast<double>(rank * 1000000 + i);
        expected.numbers[k] =
            static_cast<double>(i / rows * 1000000 + rank * rows + i % rows);
      }
      const Outcome outcome =
          Run(engine, ARequest(CollectiveKind::kAlltoall, "a"), {input});
      CHECK(outcome.outputs[0] == expected);
      CHECK(outcome.received ==
            std::vector<int64_t>(static_cast<size_t>(size), rows));
    }
  });
}

TEST_CASE("bad splits of one rank fail on all") {
  const Engines engines = MakeEngines(3, QuickOptions());
  RunRanks(engines, [](int rank, Engine* engine) {
    for (int round = 0; round < 3; ++round) {
      Request request = ARequest(CollectiveKind::kAlltoall, "a");
      request.splits = {1, 1, rank == 1 ? 2 : 1};
      const Outcome outcome =
          Submit(engine, request, {Fill(kFloat, {3}, rank)}).get();
      CHECK(outcome.status.code() == StatusCode::kInvalidArgument);
      CHECK(Contains(outcome.status.message(), "alltoall 'a': `splits`"));
      CHECK(Contains(outcome.status.message(),
                     "splits=[1, 1, 2], shape=[3] on rank 1"));
      request.splits = {1, 1, 1};
      const Values expected{kFloat, {3}, {0, 1, 2}};
      CHECK(Run(engine, request, {Fill(kFloat, {3}, rank)}).outputs[0] ==
            expected);
    }
  });
}

double Reduced(ReduceOp op, int size) {  // of 1, 2, ..., size
  double product = 1;
  for (int i = 2; i <= size; ++i) product *= i;
  switch (op) {
    case ReduceOp::kSum:
      return size * (size + 1) / 2;
    case ReduceOp::kMin:
      return 1;
    case ReduceOp::kMax:
      return size;
    case ReduceOp::kProduct:
      return product;
    case ReduceOp::kAverage:
      return (size + 1) / 2.0;
    case ReduceOp::kAdasum:
      break;
  }
  return NAN;
}

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAverage,
                                   ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kProduct};

int64_t RowsOf(int64_t num_rows, int size, int rank) {
  return num_rows / size + (rank < num_rows % size ? 1 : 0);
}

void TestReducescatter(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [size](int rank, Engine* engine) {
    for (int round = 0; round < 2; ++round) {
      for (ReduceOp op : kReduceOps) {
        for (int64_t rows : {0, 1, 7, 20000}) {
          Request request =
              ARequest(CollectiveKind::kReducescatter,
                       ReduceOpName(op) + std::to_string(rows), op);
          request.postscale = 0.5;
          // Row i holds i + 1 times its rank's number, for few rows.
          const bool few = rows < 10;
          Values input = Fill(kFloat, {rows, 3}, rank + 1);
          for (size_t i = 0; few && i < input.numbers.size(); ++i) {
            input.numbers[i] *= static_cast<double>(i / 3 + 1);
          }
          int64_t first = 0;
          for (int r = 0; r < rank; ++r) first += RowsOf(rows, size, r);
          Values expected = Fill(kFloat, {RowsOf(rows, size, rank), 3},
                                 Reduced(op, size) / 2);
          for (size_t i = 0; few && i < expected.numbers.size(); ++i) {
            const double row =
                static_cast<double>(i / 3) + static_cast<double>(first) + 1;
            expected.numbers[i] *=
                op == ReduceOp::kProduct ? std::pow(row, size) : row;
          }
          CHECK(Run(engine, request, {input}).outputs[0] == expected);
        }
      }
    }
  });
}

void TestGroups(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  const DataType dtypes[] = {kFloat, DataType::kInt32, kFloat,
                             DataType::kFloat64, DataType::kInt32};
  RunRanks(engines, [&](int rank, Engine* engine) {
    std::vector<Values> inputs, sums, parts, gathered;
    int64_t rows = 1;
    for (DataType dtype : dtypes) {
      const double factor = static_cast<double>(rows);
      const double sum = factor * Reduced(ReduceOp::kSum, size);
      inputs.push_back(Fill(dtype, {rows, 2}, factor * (rank + 1)));
      sums.push_back(Fill(dtype, {rows, 2}, sum));
      parts.push_back(Fill(dtype, {RowsOf(rows, size, rank), 2}, sum));
      gathered.push_back(Values{dtype, {rows * size, 2}, {}});
      for (int r = 0; r < size; ++r) {
        gathered.back().numbers.insert(gathered.back().numbers.end(),
                                       2 * static_cast<size_t>(rows),
                                       factor * (r + 1));
      }
      ++rows;
    }
    for (int round = 0; round < 3; ++round) {
      // All in flight at once, twice, so that they fuse where they may.
      std::vector<std::future<Outcome>> reduces, scatters, gathers;
      for (const std::string& name : {std::string("a"), std::string("b")}) {
        reduces.push_back(Submit(
            engine, ARequest(CollectiveKind::kAllreduce, "r" + name), inputs));
        scatters.push_back(
            Submit(engine, ARequest(CollectiveKind::kReducescatter, "s" + name),
                   inputs));
        gathers.push_back(Submit(
            engine, ARequest(CollectiveKind::kAllgather, "g" + name), inputs));
      }
      for (size_t i = 0; i < 2; ++i) {
        CHECK(reduces[i].get().outputs == sums);
        CHECK(scatters[i].get().outputs == parts);
        CHECK(gathers[i].get().outputs == gathered);
      }
    }
  });
}

TEST_CASE("an error in a group is reported once") {
  const Engines engines = MakeEngines(2, QuickOptions());
  RunRanks(engines, [](int rank, Engine* engine) {
    const Outcome outcome =
        Submit(engine, ARequest(CollectiveKind::kAllreduce, "g"),
               {Fill(kFloat, {2}, 1), Fill(DataType::kInt32, {2 + rank}, 1)})
            .get();
    CHECK(outcome.status.code() == StatusCode::kMismatch);
    CHECK(outcome.status.message() ==
          "allreduce 'g': ranks disagree on the shape of tensor 1: [2] on "
          "rank 0; [3] on rank 1");
  });
}

TEST_CASE("errors of a process set name global ranks") {
  EngineOptions options = QuickOptions();
  options.global_ranks = {2, 5, 7};
  const Engines engines = MakeEngines(3, options);
  RunRanks(engines, [](int rank, Engine* engine) {
    Request request = ARequest(CollectiveKind::kBroadcast, "b");
    request.process_set_id = 4;
    request.root_rank = 7;
    CHECK(Run(engine, request, {Fill(kFloat, {3}, rank)}).outputs[0] ==
          Fill(kFloat, {3}, 2));
    request.root_rank = 0;
    const Outcome outcome =
        Submit(engine, request, {Fill(kFloat, {3}, rank)}).get();
    CHECK(outcome.status.message() ==
          "broadcast 'b' (process set 4): `root_rank` must be one of ranks 2, "
          "5, 7 (process set 4). Received: root_rank=0");
  });
}

void TestAdasum(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [size](int rank, Engine* engine) {
    const Request request =
        ARequest(CollectiveKind::kAllreduce, "a", ReduceOp::kAdasum);
    // Alike: their mean, which is exact. Orthogonal: their sum.
    Values orthogonal = Fill(kFloat, {size}, 0);
    orthogonal.numbers[static_cast<size_t>(rank)] = 4;
    for (int round = 0; round < 2; ++round) {
      const Outcome outcome =
          Run(engine, request, {Fill(kFloat, {3}, 2), orthogonal});
      CHECK(outcome.outputs[0] == Fill(kFloat, {3}, 2));
      CHECK(outcome.outputs[1] == Fill(kFloat, {size}, 4));
    }
    const Outcome refused =
        Submit(engine, request, {Fill(DataType::kInt32, {3}, 2)}).get();
    CHECK(refused.status.code() == StatusCode::kInvalidArgument);
  });
}

// Rank 1 holds an allgather up, and ranks 0 and 1 remove the set meanwhile, one
// after the other: nobody hears of it from a peer.
TEST_CASE("a set removed in the middle of a collective") {
  const Engines engines = MakeEngines(2, QuickOptions());
  std::vector<float> values(3000000), gathered(2 * values.size());
  std::promise<Status> late;
  std::promise<void> has_begun, may_go_on;
  std::thread slow([&] {
    Request request = ARequest(CollectiveKind::kAllgather, "x");
    RequestTensor tensor;
    tensor.dtype = kFloat;
    tensor.shape = {3000000};
    tensor.input = values.data();
    request.tensors = {tensor};
    request.allocate_output = [&](size_t, const Shape&, void** output) {
      has_begun.set_value();
      may_go_on.get_future().wait();
      *output = gathered.data();
      return Status::Ok();
    };
    request.done = [&late](const Status& status) { late.set_value(status); };
    engines[1]->Submit(std::move(request));
  });
  auto first =
      Submit(engines[0].get(), ARequest(CollectiveKind::kAllgather, "x"),
             {Fill(kFloat, {3000000}, 1)});
  has_begun.get_future().wait();
  engines[0]->Remove("the set was removed");
  may_go_on.set_value();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  engines[1]->Remove("the set was removed");
  slow.join();
  for (const Status& status : {first.get().status, late.get_future().get()}) {
    CHECK(status.code() == StatusCode::kShutdown);
    CHECK(Contains(status.message(), "the set was removed"));
  }
}

constexpr int kMaxSize = 5;

TEST_CASE("a barrier returns when all have come") {
  for (int size = 1; size <= kMaxSize; ++size) TestBarrier(size);
}
TEST_CASE("alltoall by splits, new and known") {
  for (int size = 1; size <= kMaxSize; ++size) TestAlltoall(size);
}
TEST_CASE("alltoall of equal parts") {
  for (int size = 1; size <= kMaxSize; ++size) TestAlltoallOfEqualParts(size);
}
TEST_CASE("reducescatter with every reduction") {
  for (int size = 1; size <= kMaxSize; ++size) TestReducescatter(size);
}
TEST_CASE("groups of several dtypes, in flight together") {
  for (int size = 1; size <= kMaxSize; ++size) TestGroups(size);
}
TEST_CASE("adasum averages equal vectors and adds orthogonal ones") {
  for (int size = 1; size <= kMaxSize; ++size) TestAdasum(size);
}

}  // namespace
}  // namespace hvd
