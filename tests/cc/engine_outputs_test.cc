// A rank has no memory for an output: only that call fails, on all ranks, and
// the error names the rank.
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

// Gives `request` memory for its outputs, but none for output `index`.
Request WithoutMemory(Request request, size_t index) {
  auto memory = std::make_shared<std::vector<std::vector<std::byte>>>();
  request.allocate_output = [memory, index](size_t i, const Shape& shape,
                                            void** output) -> Status {
    if (i == index) return Status::Internal("no memory");
    memory->emplace_back(static_cast<size_t>(NumElements(shape)) * 4);
    *output = memory->back().data();
    return Status::Ok();
  };
  return request;
}

// What `rank` hears of the call that fails on `victim`.
void CheckError(const Outcome& outcome, const std::string& text, int rank,
                int victim) {
  CHECK(outcome.status.code() == StatusCode::kInternal);
  if (AreOnHosts() && rank != victim && text.rfind("alltoall", 0) == 0) {
    // The ranks of other hosts do not know what the victim receives.
    CHECK(
        Contains(outcome.status.message(), text.substr(0, text.find(" of "))));
    return;
  }
  CHECK(outcome.status.message() ==
        text + (rank == victim ? ": no memory" : ""));
}

void CheckThatEnginesLive(Engine* engine, int size) {
  CHECK(Run(engine, ARequest(CollectiveKind::kAllreduce, "later"),
            {Fill(kFloat, {3}, 2)})
            .outputs[0] == Fill(kFloat, {3}, 2 * size));
}

// Fails known and new calls between calls that succeed. Some outputs fill
// exactly one slot of a slab, some several.
void TestAllgather(int size, int64_t rows) {
  const Engines engines = MakeEngines(size, QuickOptions());
  const int victim = size - 1;
  RunRanks(engines, [&](int rank, Engine* engine) {
    const std::vector<Values> inputs = {Fill(kFloat, {rank, 2}, rank),
                                        Fill(kFloat, {rows}, rank)};
    for (int round = 0; round < 6; ++round) {
      Request request = ARequest(CollectiveKind::kAllgather, "x");
      const bool fails = round % 3 == 1;
      if (fails && rank == victim) request = WithoutMemory(request, 1);
      const Outcome outcome = Submit(engine, request, inputs).get();
      if (fails) {
        CheckError(outcome,
                   "allgather 'x': rank " + std::to_string(victim) +
                       " could not allocate output 1 of shape [" +
                       std::to_string(size * rows) + "]",
                   rank, victim);
        continue;
      }
      REQUIRE_OK(outcome.status);
      Values expected{kFloat, {size * rows}, {}};
      for (int r = 0; r < size; ++r) {
        expected.numbers.insert(expected.numbers.end(),
                                static_cast<size_t>(rows), r);
      }
      CHECK(outcome.outputs[1] == expected);
    }
    CheckThatEnginesLive(engine, size);
  });
}

void TestAlltoall(int size, int64_t rows) {
  const Engines engines = MakeEngines(size, QuickOptions());
  RunRanks(engines, [&](int rank, Engine* engine) {
    for (int round = 0; round < 4; ++round) {
      Request request = ARequest(CollectiveKind::kAlltoall, "x");
      // Rank 0 sends nothing; the others send more to higher peers.
      for (int peer = 0; peer < size; ++peer) {
        request.splits.push_back(rank == 0 ? 0 : rows + peer);
      }
      int64_t num_sent = 0;
      for (int64_t n : request.splits) num_sent += n;
      const bool fails = round % 2 == 1;
      if (fails && rank == 0) request = WithoutMemory(request, 0);
      const Outcome outcome =
          Submit(engine, request, {Fill(kFloat, {num_sent}, rank)}).get();
      if (fails) {
        CheckError(outcome,
                   "alltoall 'x': rank 0 could not allocate output 0 of shape "
                   "[" +
                       std::to_string((size - 1) * rows) + "]",
                   rank, 0);
        continue;
      }
      REQUIRE_OK(outcome.status);
      Values expected{kFloat, {(size - 1) * (rows + rank)}, {}};
      for (int r = 1; r < size; ++r) {
        expected.numbers.insert(expected.numbers.end(),
                                static_cast<size_t>(rows + rank), r);
      }
      CHECK(outcome.outputs[0] == expected);
      CHECK(outcome.received.size() == static_cast<size_t>(size));
    }
    CheckThatEnginesLive(engine, size);
  });
}

// Three calls in flight, which may run together; the middle one fails.
void TestReducescatter(int size) {
  const Engines engines = MakeEngines(size, QuickOptions());
  const int victim = size - 1;
  RunRanks(engines, [&](int rank, Engine* engine) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::future<Outcome>> outcomes;
      for (const char* name : {"a", "b", "c"}) {
        Request request = ARequest(CollectiveKind::kReducescatter, name);
        if (rank == victim && request.name == "b") {
          request = WithoutMemory(request, 1);
        }
        outcomes.push_back(
            Submit(engine, request,
                   {Fill(kFloat, {size, 2}, 1), Fill(kFloat, {size}, 2)}));
      }
      CheckError(outcomes[1].get(),
                 "reducescatter 'b': rank " + std::to_string(victim) +
                     " cannot take part: could not allocate output 1 of shape "
                     "[1]",
                 victim, victim);
      for (size_t i : {size_t{0}, size_t{2}}) {
        const Outcome outcome = outcomes[i].get();
        REQUIRE_OK(outcome.status);
        CHECK(outcome.outputs[0] == Fill(kFloat, {1, 2}, size));
        CHECK(outcome.outputs[1] == Fill(kFloat, {1}, 2 * size));
      }
    }
    CheckThatEnginesLive(engine, size);
  });
}

TEST_CASE("of several ranks without memory the lowest is named") {
  EngineOptions options = QuickOptions();
  options.global_ranks = {2, 5, 7};
  const Engines engines = MakeEngines(3, options);
  RunRanks(engines, [](int rank, Engine* engine) {
    Request request = ARequest(CollectiveKind::kAllgather, "x");
    if (rank > 0) request = WithoutMemory(request, 0);
    const Outcome outcome =
        Submit(engine, request, {Fill(kFloat, {2}, rank)}).get();
    CheckError(outcome,
               "allgather 'x': rank 5 could not allocate output 0 of shape [6]",
               rank, 1);
    CheckThatEnginesLive(engine, 3);
  });
}

TEST_CASE("an allgather fails alone where a rank has no memory for it") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    for (int64_t rows : {0, 1, 1000, 65536, 200000}) TestAllgather(size, rows);
  }
}

TEST_CASE("an alltoall fails alone where a rank has no memory for it") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    for (int64_t rows : {0, 1, 1000, 65536, 200000}) TestAlltoall(size, rows);
  }
}

TEST_CASE("a reducescatter fails alone where a rank has no memory for it") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    TestReducescatter(size);
  }
}

}  // namespace
}  // namespace hvd
