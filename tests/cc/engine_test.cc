// Whole engines, a thread for each rank: any order of submission, errors that
// reach all ranks and leave the engine usable, death, leaving, stalls.
#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cc/engine_util.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvd {
namespace {

// A sum of `values`, in place.
std::future<Status> Sum(Engine* engine, const std::string& name,
                        std::vector<float>* values) {
  auto promise = std::make_shared<std::promise<Status>>();
  Request request;
  request.name = name;
  RequestTensor tensor;
  tensor.shape.push_back(static_cast<int64_t>(values->size()));
  tensor.input = tensor.output = values->data();
  request.tensors.push_back(tensor);
  request.done = [promise](const Status& status) {
    promise->set_value(status);
  };
  std::future<Status> future = promise->get_future();
  engine->Submit(std::move(request));
  return future;
}

StatusCode CodeOf(std::future<Status>* future) { return future->get().code(); }

void TestAnyOrder(int size) {
  Engines engines = MakeEngines(size, QuickOptions());
  constexpr size_t kNames = 40;
  RunRanks(engines, [size](int rank, Engine* engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<size_t> order(kNames);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 10; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<float>> values(kNames);
      std::vector<std::future<Status>> futures;
      for (size_t i : order) {
        // Sizes change with the round: the cache must not be fooled.
        const size_t count = i * i * (round % 3 == 2 ? 2 : 1);
        values[i].assign(count, static_cast<float>(rank + 1));
        futures.push_back(Sum(engine, "t" + std::to_string(i), &values[i]));
      }
      for (auto& future : futures) CHECK_OK(future.get());
      for (const auto& value : values) {
        CHECK(Differences(value, [size](size_t) {
                return static_cast<float>(size * (size + 1) / 2);
              }) == "");
      }
    }
  });
}

TEST_CASE("a mismatch reaches all ranks and the engine lives") {
  Engines engines = MakeEngines(3, QuickOptions());
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> values(3, std::vector<float>(4, 1.0f));
    values[1].resize(5);
    std::vector<std::future<Status>> futures;
    for (size_t r = 0; r < 3; ++r) {
      futures.push_back(Sum(engines[r].get(), "x", &values[r]));
    }
    for (auto& future : futures) {
      const Status status = future.get();
      CHECK(status.code() == StatusCode::kMismatch);
      CHECK(Contains(status.message(), "allreduce 'x'"));
      CHECK(Contains(status.message(), "[4] on ranks 0 and 2"));
      CHECK(Contains(status.message(), "[5] on rank 1"));
    }
    CHECK(values[0][0] == 1.0f);  // no byte has moved
    values[1].assign(4, 1.0f);
    futures.clear();
    for (size_t r = 0; r < 3; ++r) {
      futures.push_back(Sum(engines[r].get(), "x", &values[r]));
    }
    for (auto& future : futures) CHECK_OK(future.get());
    CHECK(values[2][3] == 3.0f);
  }
}

TEST_CASE("a name submitted twice fails on all ranks") {
  Engines engines = MakeEngines(2, QuickOptions());
  std::vector<float> a(2), b(2), c(2);
  std::future<Status> first = Sum(engines[0].get(), "x", &a);
  std::future<Status> second = Sum(engines[0].get(), "x", &b);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::future<Status> other = Sum(engines[1].get(), "x", &c);
  for (std::future<Status>* future : {&first, &second, &other}) {
    const Status status = future->get();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(
        Contains(status.message(), "allreduce 'x': submitted twice by rank 0"));
  }
}

TEST_CASE("a request without a name is refused") {
  Engines engines = MakeEngines(1, QuickOptions());
  std::vector<float> value(1);
  std::future<Status> unnamed = Sum(engines[0].get(), "", &value);
  CHECK(CodeOf(&unnamed) == StatusCode::kInvalidArgument);
}

TEST_CASE("a stall names the missing ranks and the engine lives") {
  EngineOptions options = QuickOptions();
  options.stall_timeout_seconds = 0.5;
  Engines engines = MakeEngines(3, options);
  std::vector<float> a(1, 1.0f), b(1, 1.0f), c(1, 1.0f);
  std::future<Status> first = Sum(engines[0].get(), "x", &a);
  std::future<Status> second = Sum(engines[2].get(), "x", &c);
  for (std::future<Status>* future : {&first, &second}) {
    const Status status = future->get();
    CHECK(status.code() == StatusCode::kStalled);
    CHECK(Contains(status.message(), "ranks 0 and 2 wait"));
    CHECK(Contains(status.message(), "rank 1 has not come within 0.5 s"));
  }
  // Nothing is broken: the next one works.
  std::vector<std::future<Status>> futures;
  futures.push_back(Sum(engines[0].get(), "y", &a));
  futures.push_back(Sum(engines[1].get(), "y", &b));
  futures.push_back(Sum(engines[2].get(), "y", &c));
  for (auto& future : futures) CHECK_OK(future.get());
  CHECK(b[0] == 3.0f);
}

TEST_CASE("a death fails what is pending and what comes later") {
  for (size_t victim = 0; victim < 3; ++victim) {
    if (AreOnHosts() && victim < 2) continue;  // alone, or the leader of others
    std::vector<HostGroup*> groups;
    Engines engines = MakeEngines(3, QuickOptions(), &groups);
    std::vector<std::vector<float>> values(3, std::vector<float>(9));
    std::vector<std::future<Status>> pending;
    for (size_t r = 0; r < 3; ++r) {
      if (r == victim) continue;
      pending.push_back(Sum(engines[r].get(), "x", &values[r]));
    }
    MarkDead(groups, static_cast<int>(victim));
    const std::string who = "rank " + std::to_string(victim) + " died";
    for (auto& future : pending) {
      const Status status = future.get();
      CHECK(status.code() == StatusCode::kPeerLost);
      CHECK(Contains(status.message(), who));
    }
    for (size_t r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const Status status = Sum(engines[r].get(), "later", &values[r]).get();
      CHECK(status.code() == StatusCode::kPeerLost);
      CHECK(Contains(status.message(), who));
    }
  }
}

TEST_CASE("shutdown fails what is pending, and peers quote its reason") {
  Engines engines = MakeEngines(2, QuickOptions());
  std::vector<float> a(1), b(1);
  std::future<Status> pending = Sum(engines[1].get(), "x", &b);
  engines[1]->Shutdown("shutdown() was called");
  CHECK(CodeOf(&pending) == StatusCode::kShutdown);
  const Status status = Sum(engines[0].get(), "y", &a).get();
  CHECK(status.code() == StatusCode::kPeerLost);
  CHECK(
      Contains(status.message(), "rank 1 left the job: shutdown() was called"));
  const Status after = Sum(engines[1].get(), "z", &b).get();
  CHECK(after.code() == StatusCode::kNotInitialized);
  CHECK(after.message() ==
        "allreduce 'z' was submitted after shutdown() was called on rank 1");
}

// More new names in one round than a ring holds: rank 0 must not begin to run
// what it has not finished telling.
TEST_CASE("more new names in one round than a ring holds") {
  EngineOptions options = QuickOptions();
  options.cycle_time_ms = 5;  // they pile up
  Engines engines = MakeEngines(2, options);
  constexpr size_t kNames = 2000;
  RunRanks(engines, [](int, Engine* engine) {
    std::vector<std::vector<float>> values(kNames, {1.0f});
    std::vector<std::future<Status>> futures;
    for (size_t i = 0; i < kNames; ++i) {
      futures.push_back(
          Sum(engine, std::string(90, 'n') + std::to_string(i), &values[i]));
    }
    for (auto& future : futures) CHECK_OK(future.get());
    for (const auto& value : values) CHECK(value[0] == 2.0f);
  });
}

// A call that comes late for one that has failed must not pair with the next.
TEST_CASE("a late call gets the error of its own") {
  EngineOptions options = QuickOptions();
  options.stall_timeout_seconds = 0.3;
  Engines engines = MakeEngines(2, options);
  std::vector<float> a(1, 1.0f), b(1, 1.0f);
  std::future<Status> first = Sum(engines[0].get(), "x", &a);
  CHECK(CodeOf(&first) == StatusCode::kStalled);
  std::future<Status> late = Sum(engines[1].get(), "x", &b);
  CHECK(CodeOf(&late) == StatusCode::kStalled);
  std::future<Status> again = Sum(engines[0].get(), "x", &a);
  std::future<Status> too = Sum(engines[1].get(), "x", &b);
  CHECK_OK(again.get());
  CHECK_OK(too.get());
  CHECK(a[0] == 2.0f);
  CHECK(b[0] == 2.0f);
}

// An empty collective ends on a rank before others have heard of it.
TEST_CASE("ranks may leave after an empty collective") {
  for (int round = 0; round < 300; ++round) {
    Engines engines = MakeEngines(3, QuickOptions());
    RunRanks(engines, [](int, Engine* engine) {
      std::vector<float> values;
      CHECK_OK(Sum(engine, "last", &values).get());
      engine->Shutdown("done");
    });
  }
}

// A rank that leaves right after its last collective does not fail the others'.
TEST_CASE("ranks may leave after their last collective") {
  for (int round = 0; round < 50; ++round) {
    Engines engines = MakeEngines(3, QuickOptions());
    RunRanks(engines, [](int, Engine* engine) {
      std::vector<float> values(100000, 1.0f);
      CHECK_OK(Sum(engine, "last", &values).get());
      CHECK(values[99999] == 3.0f);
      engine->Shutdown("done");
    });
  }
}

// If one rank is late, many small calls run as a few collectives, whichever
// rank is late and in whatever order it submits.
void TestACrowdRunsTogether(int size) {
  constexpr size_t kNames = 200;
  Engines engines = MakeEngines(size, QuickOptions());
  for (int round = 0; round < 4; ++round) {
    const uint64_t num_before = engines[0]->stats().num_collectives;
    std::atomic<int> num_early{0};
    RunRanks(engines, [&](int rank, Engine* engine) {
      const bool is_late = rank == round % size;
      while (is_late && num_early.load() < size - 1) std::this_thread::yield();
      std::vector<std::vector<float>> values(
          kNames, std::vector<float>(16, static_cast<float>(rank + 1)));
      std::vector<std::future<Status>> futures;
      for (size_t i = 0; i < kNames; ++i) {
        const size_t name = is_late ? kNames - 1 - i : i;
        futures.push_back(Sum(engine, std::to_string(name), &values[name]));
      }
      ++num_early;
      for (auto& future : futures) CHECK_OK(future.get());
      for (const auto& value : values) {
        CHECK(value[15] == static_cast<float>(size * (size + 1) / 2));
      }
    });
    const uint64_t num_run = engines[0]->stats().num_collectives - num_before;
#ifndef HVD_SANITIZED  // a call there lasts as long as the engine gathers
    // A host does not know of a crowd on another one.
    if (size > 1 && !AreOnHosts()) CHECK(num_run < kNames / 2);
#endif
    CHECK(num_run <= kNames);
  }
}

#if defined(__x86_64__)
// TensorFlow's threads flush denormal numbers to 0, and may run reductions.
TEST_CASE("denormals count on a thread that flushes them") {
  constexpr uint32_t kFlushes = 0x8040;
  Engines engines = MakeEngines(2, QuickOptions());
  for (DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    RunRanks(engines, [&](int rank, Engine* engine) {
      const uint32_t before = _mm_getcsr();
      for (int round = 0; round < 100; ++round) {
        std::vector<uint16_t> values(32, 0x0010);  // denormal
        Request request;
        request.name = DataTypeName(dtype);
        RequestTensor tensor;
        tensor.dtype = dtype;
        tensor.shape = {32 * 2 / static_cast<int64_t>(ElementBytes(dtype))};
        tensor.input = tensor.output = values.data();
        request.tensors.push_back(tensor);
        std::promise<Status> promise;
        request.done = [&promise](const Status& s) { promise.set_value(s); };
        if (rank == 0) _mm_setcsr(before | kFlushes);
        engine->Submit(std::move(request));
        CHECK_OK(promise.get_future().get());
        CHECK((_mm_getcsr() & kFlushes) == (rank == 0 ? kFlushes : 0));
        _mm_setcsr(before);
        for (uint16_t value : values) CHECK(value == 0x0020);
      }
    });
  }
}
#endif

// No other rank submits, and the engine waits for more.
TEST_CASE("shutdown while the engine gathers a crowd") {
  Engines engines = MakeEngines(2, QuickOptions());
  std::vector<std::vector<float>> values(10, std::vector<float>(4));
  std::vector<std::future<Status>> futures;
  for (size_t i = 0; i < values.size(); ++i) {
    futures.push_back(Sum(engines[0].get(), std::to_string(i), &values[i]));
  }
  engines[0]->Shutdown("done");
  for (auto& future : futures) {
    CHECK(CodeOf(&future) == StatusCode::kShutdown);
  }
  std::future<Status> other = Sum(engines[1].get(), "0", &values[0]);
  CHECK(CodeOf(&other) == StatusCode::kPeerLost);
}

TEST_CASE("ranks submit in any order") {
  for (int size = 1; size <= 4; ++size) TestAnyOrder(size);
}
TEST_CASE("a crowd runs together, whoever is late") {
  for (int size = 1; size <= 4; ++size) TestACrowdRunsTogether(size);
}

}  // namespace
}  // namespace hvd
