// Uneven data through whole engines, as threads: ranks that join while others
// go on, with every reduction, with groups, by known and by new names.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

int64_t Join(Engine* engine, bool average_over_active = false) {
  Request request = ARequest(CollectiveKind::kJoin, "join");
  request.average_over_active = average_over_active;
  const Outcome outcome = Run(engine, request, {});
  REQUIRE(outcome.received.size() == 1);
  return outcome.received[0];
}

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAverage,
                                   ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kProduct};

// How many steps a rank has data for; one of them has the most.
int StepsOf(int rank, int round, int size) {
  return 2 + 3 * ((rank + round) % size);
}

double InputOf(int rank, int step, size_t tensor) {
  return (rank + step + static_cast<int>(tensor)) % 3 + 1;
}

// The result over the ranks that have data for `step`. Averages divide by
// `divisor`.
double Expected(const Request& request, const std::vector<int>& active,
                int step, size_t tensor, int divisor) {
  double result = 0;
  bool first = true;
  for (int rank : active) {
    const double value = request.prescale * InputOf(rank, step, tensor);
    if (first) {
      result = value;
    } else if (request.op == ReduceOp::kMin) {
      result = std::min(result, value);
    } else if (request.op == ReduceOp::kMax) {
      result = std::max(result, value);
    } else if (request.op == ReduceOp::kProduct) {
      result *= value;
    } else {
      result += value;
    }
    first = false;
  }
  if (request.op == ReduceOp::kAverage) result /= divisor;
  return result * request.postscale;
}

struct JoinCase {
  ReduceOp op = ReduceOp::kSum;
  bool average_over_active = false;
  bool new_names = false;  // each step under a name of its own
  double prescale = 1.0;
  double postscale = 1.0;
};

// Groups of two dtypes, and one large tensor beside them, so that joined ranks
// take part in fused, flat and chunked collectives alike.
void RunSteps(int rank, int size, int round, const JoinCase& c,
              Engine* engine) {
  for (int step = 0; step < StepsOf(rank, round, size); ++step) {
    Request request = ARequest(
        CollectiveKind::kAllreduce,
        c.new_names ? std::to_string(round) + "." + std::to_string(step) + "."
                    : "step",
        c.op);
    request.prescale = c.prescale;
    request.postscale = c.postscale;
    std::vector<int> active;
    for (int r = 0; r < size; ++r) {
      if (StepsOf(r, round, size) > step) active.push_back(r);
    }
    const int divisor =
        c.average_over_active ? static_cast<int>(active.size()) : size;
    // Integers truncate: leave them out where that would change the result.
    const bool truncates =
        c.op == ReduceOp::kAverage || c.prescale != std::floor(c.prescale);
    const DataType other = truncates ? DataType::kFloat64 : DataType::kInt32;
    std::vector<Values> group{Fill(kFloat, {5}, 0), Fill(other, {3}, 0),
                              Fill(kFloat, {0}, 0)};
    std::vector<Values> large{Fill(kFloat, {70000}, 0)};
    std::vector<Values> expected_group = group, expected_large = large;
    const auto set = [&](std::vector<Values>* inputs,
                         std::vector<Values>* expected) {
      for (size_t i = 0; i < inputs->size(); ++i) {
        (*inputs)[i] = Fill((*inputs)[i].dtype, (*inputs)[i].shape,
                            InputOf(rank, step, i));
        const double value = Expected(request, active, step, i, divisor);
        (*expected)[i] =
            Unpack((*inputs)[i].dtype, (*inputs)[i].shape,
                   Pack(Fill((*inputs)[i].dtype, (*inputs)[i].shape, value)));
      }
    };
    set(&group, &expected_group);
    set(&large, &expected_large);
    Request second = request;
    request.name += "group";
    second.name += "large";
    std::future<Outcome> a = Submit(engine, request, group);
    std::future<Outcome> b = Submit(engine, second, large);
    Outcome outcome = a.get();
    REQUIRE_OK(outcome.status);
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t k = 0; k < outcome.outputs[i].numbers.size(); ++k) {
        // The library may round once more.
        CHECK(std::abs(outcome.outputs[i].numbers[k] -
                       expected_group[i].numbers[k]) <=
              1e-6 * std::abs(expected_group[i].numbers[k]));
      }
    }
    outcome = b.get();
    REQUIRE_OK(outcome.status);
    CHECK(std::abs(outcome.outputs[0].numbers[69999] -
                   expected_large[0].numbers[69999]) <=
          1e-6 * std::abs(expected_large[0].numbers[69999]));
  }
}

void TestUnevenSteps(int size, const JoinCase& c) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [&](int rank, Engine* engine) {
    for (int round = 0; round < 3; ++round) {
      RunSteps(rank, size, round, c, engine);
      // The rank with the most steps joins last.
      const int last = (2 * size - 1 - round % size) % size;
      CHECK(Join(engine, c.average_over_active) == last);
      // All take part again.
      CHECK(Run(engine, ARequest(CollectiveKind::kAllreduce, "all"),
                {Fill(kFloat, {2}, 1)})
                .outputs[0] == Fill(kFloat, {2}, size));
      Run(engine, ARequest(CollectiveKind::kBarrier, "barrier"), {});
    }
  });
}

void TestUnevenStepsWithEveryReduction(int size) {
  for (ReduceOp op : kReduceOps) {
#ifdef HVD_SANITIZED
    TestUnevenSteps(size, {op, false, size == 2});
    continue;
#endif
    for (bool new_names : {false, true}) {
      TestUnevenSteps(size, {op, false, new_names});
    }
    TestUnevenSteps(size, {op, false, false, 0.5, 3.0});
    TestUnevenSteps(size, {op, false, true, -2.0, 0.25});
    TestUnevenSteps(size, {op, false, false, 0.0, 1.0});
  }
  TestUnevenSteps(size, {ReduceOp::kAverage, true, false});
  TestUnevenSteps(size, {ReduceOp::kAverage, true, true, 2.0, 0.5});
}

TEST_CASE("neutral values leave extremes and bools as they are") {
  const Engines engines = MakeEngines(3, QuickOptions());
  RunRanks(engines, [](int rank, Engine* engine) {
    const double inf = std::numeric_limits<double>::infinity();
    const double lowest = std::numeric_limits<int32_t>::lowest();
    const double highest = std::numeric_limits<int32_t>::max();
    if (rank == 1) {
      for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        for (const Values& values :
             {Values{kFloat, {3}, {inf, -inf, 0}},
              Values{DataType::kInt32, {3}, {lowest, highest, 0}},
              Values{DataType::kBool, {2}, {0, 1}},
              Values{DataType::kUint8, {2}, {0, 255}}}) {
          CHECK(Run(engine, ARequest(CollectiveKind::kAllreduce, "a", op),
                    {values})
                    .outputs[0] == values);
        }
      }
    }
    CHECK(Join(engine) == 1);
  });
}

// The Adasum of a vector and zeros is the vector.
void TestAdasumWithZeros(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [size](int rank, Engine* engine) {
    const Values values{kFloat, {3}, {1.5, -2, 0}};
    if (rank == size / 2) {
      for (int round = 0; round < 2; ++round) {
        CHECK(Run(engine,
                  ARequest(CollectiveKind::kAllreduce, "a", ReduceOp::kAdasum),
                  {values, Fill(kFloat, {70000}, 3)})
                  .outputs[0] == values);
      }
    }
    CHECK(Join(engine) == size / 2);
  });
}

// Ranks run the same names in orders of their own, and join at random.
void TestRandomPrograms(int size) {
  EngineOptions options = QuickOptions();
  options.cache_capacity = 8;  // evictions while ranks have joined
  const Engines engines = MakeEngines(size, options);
  constexpr int kRounds = 8;
  std::mt19937 shared(7);
  std::vector<std::vector<int>> num_steps(kRounds);
  for (auto& steps : num_steps) {
    for (int r = 0; r < size; ++r) {
      steps.push_back(static_cast<int>(shared() % 12));
    }
  }
  RunRanks(engines, [&](int rank, Engine* engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    int64_t last_of_rank = -1;
    for (const std::vector<int>& steps : num_steps) {
      for (int step = 0; step < steps[static_cast<size_t>(rank)]; ++step) {
        double sum = 0;
        for (int r = 0; r < size; ++r) {
          if (steps[static_cast<size_t>(r)] > step) sum += r + 1;
        }
        std::vector<size_t> order{0, 1, 2, 3, 4, 5};
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::future<Outcome>> futures;
        for (size_t i : order) {
          const int64_t count = static_cast<int64_t>(i * i) + step;
          futures.push_back(Submit(
              engine,
              ARequest(CollectiveKind::kAllreduce,
                       std::to_string(step % 4) + "." + std::to_string(i)),
              {Fill(kFloat, {count}, rank + 1)}));
        }
        for (size_t k = 0; k < order.size(); ++k) {
          const Outcome outcome = futures[k].get();
          REQUIRE_OK(outcome.status);
          CHECK(Differences(outcome.outputs[0].numbers,
                            [sum](size_t) { return sum; }) == "");
        }
      }
      last_of_rank = Join(engine);
    }
    CHECK(last_of_rank >= 0);
    CHECK(last_of_rank < size);
  });
}

TEST_CASE("other kinds fail and the engine lives") {
  const Engines engines = MakeEngines(3, QuickOptions());
  RunRanks(engines, [](int rank, Engine* engine) {
    for (int round = 0; round < 3; ++round) {
      if (rank != 2) {
        const Outcome outcome =
            Submit(engine, ARequest(CollectiveKind::kAllgather, "g"),
                   {Fill(kFloat, {1}, rank)})
                .get();
        CHECK(outcome.status.code() == StatusCode::kMismatch);
        CHECK(outcome.status.message() ==
              "allgather 'g': rank 2 has joined; from then on only allreduces "
              "can run. Received: allgather on ranks 0 and 1");
        CHECK(Run(engine, ARequest(CollectiveKind::kAllreduce, "a"),
                  {Fill(kFloat, {1}, rank + 1)})
                  .outputs[0] == Fill(kFloat, {1}, 3));
      }
      Join(engine);
      CHECK(Run(engine, ARequest(CollectiveKind::kAllgather, "g"),
                {Fill(kFloat, {1}, rank)})
                .outputs[0] == (Values{kFloat, {3}, {0, 1, 2}}));
    }
  });
}

TEST_CASE("ranks must agree on average_over_active") {
  const Engines engines = MakeEngines(3, QuickOptions());
  RunRanks(engines, [](int rank, Engine* engine) {
    for (int round = 0; round < 3; ++round) {
      Request request = ARequest(CollectiveKind::kJoin, "join");
      request.average_over_active = rank == 1;
      const Outcome outcome = Submit(engine, request, {}).get();
      CHECK(outcome.status.code() == StatusCode::kMismatch);
      CHECK(Contains(outcome.status.message(),
                     "join: ranks disagree on the average: "));
      Run(engine, ARequest(CollectiveKind::kBarrier, "b"), {});
      Join(engine, true);
    }
  });
}

TEST_CASE("a rank that has joined may submit nothing") {
  const Engines engines = MakeEngines(2, QuickOptions());
  std::future<Outcome> join =
      Submit(engines[0].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  for (CollectiveKind kind :
       {CollectiveKind::kJoin, CollectiveKind::kBarrier}) {
    const Outcome outcome =
        Submit(engines[0].get(), ARequest(kind, "b"), {}).get();
    CHECK(outcome.status.code() == StatusCode::kInvalidArgument);
    CHECK(Contains(outcome.status.message(), "rank 0 has joined"));
  }
  CHECK(Join(engines[1].get()) == 1);
  CHECK_OK(join.get().status);
}

TEST_CASE("a join fails when a peer dies or leaves") {
  std::vector<HostGroup*> groups;
  Engines engines = MakeEngines(3, QuickOptions(), &groups);
  std::future<Outcome> join =
      Submit(engines[1].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  MarkDead(groups, 2);
  CHECK(join.get().status.code() == StatusCode::kPeerLost);

  engines = MakeEngines(2, QuickOptions());
  std::future<Outcome> other =
      Submit(engines[0].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  join = Submit(engines[1].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  CHECK_OK(join.get().status);
  CHECK_OK(other.get().status);
  join = Submit(engines[1].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  engines[1]->Shutdown("shutdown() was called");
  CHECK(join.get().status.code() == StatusCode::kShutdown);
}

TEST_CASE("a join waits for as long as others have data") {
  EngineOptions options = QuickOptions();
  options.stall_timeout_seconds = 0.3;
  const Engines engines = MakeEngines(2, options);
  std::future<Outcome> join =
      Submit(engines[1].get(), ARequest(CollectiveKind::kJoin, "join"), {});
  CHECK(join.wait_for(std::chrono::milliseconds(3600)) ==
        std::future_status::timeout);
  CHECK(Run(engines[0].get(), ARequest(CollectiveKind::kAllreduce, "a"),
            {Fill(kFloat, {2}, 5)})
            .outputs[0] == Fill(kFloat, {2}, 5));
  CHECK(Join(engines[0].get()) == 0);
  CHECK_OK(join.get().status);
}

#ifdef HVD_SANITIZED  // threads that take turns on few cores are slow there
constexpr int kMaxSize = 3;
#else
constexpr int kMaxSize = 5;
#endif

TEST_CASE("uneven steps, with every reduction") {
  for (int size = 1; size <= kMaxSize; ++size) {
    TestUnevenStepsWithEveryReduction(size);
  }
}
TEST_CASE("ranks join at random while the cache evicts") {
  for (int size = 1; size <= kMaxSize; ++size) TestRandomPrograms(size);
}
TEST_CASE("adasum of a vector and of joined ranks' zeros is the vector") {
  for (int size = 1; size <= kMaxSize; ++size) TestAdasumWithZeros(size);
}

}  // namespace
}  // namespace hvd
