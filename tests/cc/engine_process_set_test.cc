// Engines of several process sets: calls in the wrong set are found, right ones
// are left alone.
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/negotiation/message.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

// EngineOptions::pending_elsewhere of an engine of `sets[set]`.
int InFlightElsewhere(const Engines* sets, int set, size_t rank,
                      const std::string& name) {
  const Engines& other = sets[1 - set];
  if (rank >= other.size()) return kNotElsewhere;
  const std::optional<bool> found =
      other[rank]->IsInFlight(name, std::chrono::milliseconds(20 * set));
  if (!found.has_value()) return kElsewhereUnknown;
  return *found ? 1 - set : kNotElsewhere;
}

// Two sets of the ranks 0 and 1; rank 0 calls in one, rank 1 in the other.
TEST_CASE("calls in different process sets are a mismatch") {
  Engines sets[2];
  for (int set : {0, 1}) {
    auto groups = CreateInMemory(2);
    for (size_t rank : {0, 1}) {
      EngineOptions options = QuickOptions();
      options.pending_elsewhere = [&sets, set, rank](
                                      const std::string& name,
                                      const std::vector<int>& waiting) {
        REQUIRE(waiting.size() == 1);
        return InFlightElsewhere(sets, set, rank, name);
      };
      sets[set].push_back(Engine::Create(std::move(groups[rank]), options));
    }
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Outcome>> futures;
    for (size_t rank : {0, 1}) {
      Request request = ARequest(CollectiveKind::kAllreduce, "x");
      request.process_set_id = static_cast<int32_t>(rank);
      futures.push_back(
          Submit(sets[rank][rank].get(), request, {Fill(kFloat, {2}, 1)}));
      // One of them fails first; the other must still find the mismatch.
      std::this_thread::sleep_for(std::chrono::milliseconds(100 * round));
    }
    for (size_t rank : {0, 1}) {
      const Status status = futures[rank].get().status;
      CHECK(status.code() == StatusCode::kMismatch);
      CHECK(Contains(status.message(), "disagree on the process set: "));
      CHECK(Contains(status.message(), "process set 0 on rank 0"));
      CHECK(Contains(status.message(), "process set 1 on rank 1"));
    }
    // Both sets work.
    for (Engines& engines : sets) {
      RunRanks(engines, [](int, Engine* engine) {
        Run(engine, ARequest(CollectiveKind::kAllreduce, "x"),
            {Fill(kFloat, {2}, 1)});
      });
    }
  }
}

// Ranks 0 and 1 call in both of two sets, and rank 2 is slow in one of them.
// Rank 1 waits there before it calls in the other, which is no mistake.
TEST_CASE("one name in two process sets is no mismatch") {
  Engines sets[2];
  for (int set : {0, 1}) {
    auto groups = CreateInMemory(3 - set);
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      EngineOptions options = QuickOptions();
      options.pending_elsewhere = [&sets, set, rank](const std::string& name,
                                                     const std::vector<int>&) {
        return InFlightElsewhere(sets, set, rank, name);
      };
      sets[set].push_back(Engine::Create(std::move(groups[rank]), options));
    }
  }
  const auto submit = [&sets](int set, size_t rank) {
    Request request = ARequest(CollectiveKind::kAllreduce, "x");
    request.process_set_id = set;
    return Submit(sets[set][rank].get(), request, {Fill(kFloat, {2}, 1)});
  };
  std::vector<std::future<Outcome>> futures;
  futures.push_back(submit(0, 0));
  futures.push_back(submit(0, 1));
  futures.push_back(submit(1, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  futures.push_back(submit(0, 2));
  futures.push_back(submit(1, 1));
  for (auto& future : futures) CHECK_OK(future.get().status);
}

}  // namespace
}  // namespace hvd
