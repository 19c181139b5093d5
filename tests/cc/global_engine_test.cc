// The engines of a process, by process set: which one gets a request, what a
// removal or shutdown ends, and who hears of a death.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <numeric>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/process/global_engine.h"

namespace hvd {
namespace {

EngineOptions QuickOptions(std::vector<int> global_ranks = {}) {
  EngineOptions options;
  options.stall_warning_seconds = 0;
  options.stall_timeout_seconds = 20.0;
  options.global_ranks = std::move(global_ranks);
  return options;
}

Request SumRequest(int32_t process_set_id, const std::string& name,
                   float* value) {
  Request request;
  request.process_set_id = process_set_id;
  request.name = name;
  RequestTensor tensor;
  tensor.shape = {1};
  tensor.input = tensor.output = value;
  request.tensors.push_back(tensor);
  return request;
}

template <typename Submit>
std::future<Status> Await(Request request, const Submit& submit) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> future = promise->get_future();
  request.done = [promise](const Status& status) {
    promise->set_value(status);
  };
  submit(std::move(request));
  return future;
}

std::future<Status> Sum(int32_t process_set_id, const std::string& name,
                        float* value) {
  return Await(SumRequest(process_set_id, name, value), &SubmitGlobal);
}

std::future<Status> Sum(Engine* engine, const std::string& name, float* value) {
  return Await(SumRequest(0, name, value),
               [engine](Request r) { engine->Submit(std::move(r)); });
}

void StartAlone() {
  SetGlobalEngine(
      Engine::Create(std::move(CreateInMemory(1)[0]), QuickOptions()));
}

// ---- One process, one rank ----

TEST_CASE("nothing works before init and after shutdown") {
  float value = 1;
  for (int round = 0; round < 2; ++round) {
    for (int32_t id : {0, 3}) {
      const Status status = Sum(id, "x", &value).get();
      CHECK(status.code() == StatusCode::kNotInitialized);
      CHECK(Contains(status.message(), "allreduce 'x': call hvd.init() first"));
    }
    CHECK(ProcessSetIds().empty());
    CHECK(GlobalEngine() == nullptr);
    StartAlone();
    CHECK_OK(Sum(0, "x", &value).get());
    const Status status = Sum(3, "x", &value).get();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Contains(status.message(), "process set 3 does not exist"));
    CHECK(TotalStats().num_requests == 1);
    ShutdownGlobal("done");
  }
}

TEST_CASE("registration of a set is checked") {
  StartAlone();
  const auto code = [](int32_t id, std::vector<int> ranks) {
    return AddProcessSet(id, std::move(ranks), nullptr).code();
  };
  CHECK(code(1, {}) == StatusCode::kInvalidArgument);
  CHECK(code(1, {1}) == StatusCode::kInvalidArgument);  // no such rank
  CHECK(code(1, {0}) == StatusCode::kInvalidArgument);  // where is its engine?
  CHECK(RemoveProcessSet(0).code() == StatusCode::kInvalidArgument);
  CHECK(RemoveProcessSet(1).code() == StatusCode::kInvalidArgument);
  CHECK(ProcessSetIds() == std::vector<int32_t>{0});
  ShutdownGlobal("done");
}

// Requests submitted during the shutdown are called back exactly once.
TEST_CASE("shutdown while other threads submit") {
  for (int round = 0; round < 20; ++round) {
    StartAlone();
    constexpr size_t kThreads = 4;
    std::atomic<int> num_ok{0};
    std::atomic<int> num_late{0};
    std::vector<std::thread> threads;  // no REQUIRE on these
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        float value = 1;
        while (true) {
          const Status status = Sum(0, "t" + std::to_string(t), &value).get();
          if (!status.ok()) {
            CHECK((status.code() == StatusCode::kNotInitialized ||
                   status.code() == StatusCode::kShutdown));
            ++num_late;
            return;
          }
          ++num_ok;
        }
      });
    }
    while (num_ok.load() < 100) std::this_thread::yield();
    ShutdownGlobal("done");
    for (std::thread& thread : threads) thread.join();
    CHECK(num_late.load() == static_cast<int>(kThreads));
  }
}

TEST_CASE("a forked child is no rank") {
  const std::vector<int> statuses =
      RunProcesses(2, [](std::unique_ptr<HostGroup> group) {
        SetGlobalEngine(Engine::Create(std::move(group), QuickOptions()));
        float value = 1;
        CHECK_OK(Sum(0, "x", &value).get());
        const pid_t child = fork();
        if (child == 0) {
          for (int32_t id : {0, 1}) {
            const Status status = Sum(id, "x", &value).get();
            CHECK(status.code() == StatusCode::kNotInitialized);
            CHECK(Contains(status.message(), "was forked"));
          }
          CHECK(GlobalEngine() == nullptr);
          ShutdownGlobal("the child");
// Neither the sanitizers nor QEMU allow threads in such a child.
#if !defined(HVD_SANITIZED) && !defined(HVD_EMULATED)
          StartAlone();
          CHECK_OK(Sum(0, "x", &value).get());
          ShutdownGlobal("the child");
#endif
          EndChild();
        }
        // The job goes on, and so does the watch over its ranks.
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK_OK(Sum(0, "y", &value).get());
        if (GlobalEngine()->rank() == 1) EndChild();
        CHECK(Sum(0, "z", &value).get().code() == StatusCode::kPeerLost);
        ShutdownGlobal("done");
      });
  CheckAllExitedWell(statuses);
}

// ---- Several processes ----

struct SetOfTest {
  int32_t id;
  std::vector<int> ranks;
  ShmSegment segment;
};

// Registers the sets on one rank.
void StartWithSets(std::unique_ptr<HostGroup> group,
                   const std::vector<SetOfTest>& sets) {
  const int rank = group->rank();
  SetGlobalEngine(Engine::Create(std::move(group), QuickOptions()));
  for (const SetOfTest& set : sets) {
    const auto self = std::find(set.ranks.begin(), set.ranks.end(), rank);
    std::shared_ptr<Engine> engine;
    if (self != set.ranks.end()) {
      std::unique_ptr<HostGroup> own;
      REQUIRE_OK(AttachSegmentOfSet(
          set.segment, static_cast<int>(self - set.ranks.begin()),
          GlobalEngine()->membership(), set.ranks, &own));
      engine = Engine::Create(std::move(own), QuickOptions(set.ranks));
    }
    REQUIRE_OK(AddProcessSet(set.id, set.ranks, std::move(engine)));
  }
}

std::vector<int> RunWithSets(int size, std::vector<SetOfTest> sets,
                             const std::function<void(int rank)>& body) {
  for (SetOfTest& set : sets) {
    REQUIRE_OK(CreateSegment(static_cast<int>(set.ranks.size()), &set.segment));
  }
  std::vector<int> statuses =
      RunProcesses(size, [&](std::unique_ptr<HostGroup> group) {
        const int rank = group->rank();
        StartWithSets(std::move(group), sets);
        body(rank);
        ShutdownGlobal("done");
      });
  for (const SetOfTest& set : sets) close(set.segment.fd);
  return statuses;
}

TEST_CASE("each process set sums its own") {
  const std::vector<SetOfTest> sets = {
      {1, {0, 2}, {}}, {2, {1, 3}, {}}, {7, {1, 2, 3}, {}}};
  CheckAllExitedWell(RunWithSets(4, sets, [&](int rank) {
    CHECK(ProcessSetIds() == (std::vector<int32_t>{0, 1, 2, 7}));
    for (int round = 0; round < 50; ++round) {
      for (const SetOfTest& set : sets) {
        float value = static_cast<float>(rank + round);
        const Status status = Sum(set.id, "x", &value).get();
        const bool is_member =
            std::count(set.ranks.begin(), set.ranks.end(), rank) > 0;
        if (is_member) {
          REQUIRE_OK(status);
          const int sum =
              std::accumulate(set.ranks.begin(), set.ranks.end(),
                              round * static_cast<int>(set.ranks.size()));
          CHECK(value == static_cast<float>(sum));
        } else {
          CHECK(status.code() == StatusCode::kInvalidArgument);
          CHECK(Contains(status.message(), "rank " + std::to_string(rank) +
                                               " is not in process set " +
                                               std::to_string(set.id) +
                                               " (ranks "));
        }
      }
    }
    // Nobody may leave while others still need it.
    float value = 1;
    CHECK_OK(Sum(0, "end", &value).get());
    CHECK(value == 4.0f);
    const uint64_t before = TotalStats().num_requests;
    CHECK(before >= 51 + (rank > 0 ? 50 : 0));
    for (const SetOfTest& set : sets) REQUIRE_OK(RemoveProcessSet(set.id));
    CHECK(TotalStats().num_requests == before);
    CHECK(ProcessSetIds() == std::vector<int32_t>{0});
    CHECK_OK(Sum(0, "very end", &value).get());
  }));
}

TEST_CASE("removal of a set fails what is pending") {
  CheckAllExitedWell(RunWithSets(2, {{1, {0, 1}, {}}}, [](int rank) {
    float mine = 1;
    float value = 1;
    std::future<Status> pending;
    if (rank == 0) pending = Sum(1, "alone", &mine);
    CHECK_OK(Sum(0, "meet", &value).get());
    REQUIRE_OK(RemoveProcessSet(1));
    if (rank == 0) {
      const Status status = pending.get();
      CHECK(status.code() == StatusCode::kShutdown);
      CHECK(Contains(status.message(), "process set 1 was removed"));
    }
    CHECK_OK(Sum(0, "meet again", &value).get());
    CHECK(Sum(1, "x", &mine).get().code() == StatusCode::kInvalidArgument);
  }));
}

TEST_CASE("a request that waits in another set is found") {
  CheckAllExitedWell(RunWithSets(2, {{1, {0, 1}, {}}}, [](int rank) {
    float mine = 1;
    float value = 1;
    std::future<Status> pending;
    if (rank == 0) {
      pending = Sum(1, "x", &mine);
      CHECK(Sum(0, "meet", &value).get().ok());
      // PendingElsewhere may find the engine busy; then ask again.
      while (PendingElsewhere(0, "x", {1}) != 1) std::this_thread::yield();
      CHECK(PendingElsewhere(1, "x", {1}) == kNotElsewhere);
      CHECK(PendingElsewhere(0, "y", {1}) < 0);
      CHECK(PendingElsewhere(0, "x", {5}) == kNotElsewhere);
    } else {
      CHECK_OK(Sum(0, "meet", &value).get());
    }
    CHECK_OK(Sum(0, "meet again", &value).get());
    if (rank == 1) pending = Sum(1, "x", &mine);
    CHECK_OK(pending.get());
    CHECK(PendingElsewhere(0, "x", {0, 1}) < 0);
    CHECK_OK(Sum(0, "end", &value).get());
  }));
}

// The death of one rank ends what waits on every survivor, in each set.
TEST_CASE("a death ends what waits in every set") {
  const std::vector<int> statuses = RunWithSets(
      3, {{1, {0, 1}, {}}, {2, {0}, {}}, {3, {1, 2}, {}}}, [](int rank) {
        float value = 1;
        CHECK_OK(Sum(0, "meet", &value).get());
        if (rank == 2) {
          GlobalEngine()->NoteExitReason("out of luck");
          std::raise(SIGKILL);
        }
        const Clock::time_point begin = Clock::now();
        // One waits, the other comes only afterwards.
        const std::vector<int32_t> ids = rank == 0
                                             ? std::vector<int32_t>{1, 2, 0, 1}
                                             : std::vector<int32_t>{3, 1, 0, 3};
        for (int32_t id : ids) {
          Status status;
          while (status.ok()) status = Sum(id, "x", &value).get();
          CHECK(status.code() == StatusCode::kPeerLost);
          CHECK(Contains(status.message(), "rank 2 (pid "));
          CHECK(Contains(status.message(), "last words: out of luck"));
        }
        CHECK(Clock::now() - begin < std::chrono::seconds(2));
      });
  CHECK(WIFEXITED(statuses[0]));
  CHECK(WEXITSTATUS(statuses[0]) == 0);
  CHECK(WIFEXITED(statuses[1]));
  CHECK(WEXITSTATUS(statuses[1]) == 0);
  CHECK(WIFSIGNALED(statuses[2]));
}

// ---- Leaving is no death; groups bound to a job ----

struct RankOfTest {
  std::shared_ptr<HostGroup> job;
  std::unique_ptr<Engine> set;
};

// Ranks 0 and 1 are a set of a job of three.
std::vector<RankOfTest> MakeRanks(
    std::vector<std::shared_ptr<HostGroup>>* jobs) {
  std::vector<RankOfTest> ranks(2);
  auto job_group = CreateInMemory(3);
  auto set_group = CreateInMemory(2);
  for (size_t r = 0; r < 3; ++r) {
    std::shared_ptr<HostGroup> job = std::move(job_group[r]);
    jobs->push_back(job);
    if (r == 2) continue;
    set_group[r]->membership()->BindToJob({job, job->membership()}, {0, 1});
    ranks[r].set =
        Engine::Create(std::move(set_group[r]), QuickOptions({0, 1}));
    ranks[r].job = std::move(job);
  }
  return ranks;
}

TEST_CASE("leaving in peace is no death") {
  std::vector<std::shared_ptr<HostGroup>> jobs;
  std::vector<RankOfTest> ranks = MakeRanks(&jobs);
  float a = 1, b = 1;
  jobs[2]->membership()->Leave("shutdown() was called");
  for (RankOfTest& rank : ranks) rank.job->membership()->MarkDead(2);
  std::future<Status> first = Sum(ranks[0].set.get(), "x", &a);
  std::future<Status> second = Sum(ranks[1].set.get(), "x", &b);
  CHECK_OK(first.get());
  CHECK_OK(second.get());
  CHECK(a == 2.0f);
  CHECK(b == 2.0f);
}

TEST_CASE("leaving after a failure is a death once the process ends") {
  std::vector<std::shared_ptr<HostGroup>> jobs;
  std::vector<RankOfTest> ranks = MakeRanks(&jobs);
  float a = 1, b = 1;
  std::future<Status> pending = Sum(ranks[0].set.get(), "x", &a);
  jobs[2]->membership()->NoteFailure("ValueError: boom");
  jobs[2]->membership()->Leave("ValueError: boom");
  for (RankOfTest& rank : ranks) rank.job->membership()->MarkDead(2);
  for (std::future<Status>* future : {&pending}) {
    const Status status = future->get();
    CHECK(status.code() == StatusCode::kPeerLost);
    CHECK(Contains(status.message(), "rank 2 left the job: ValueError: boom"));
  }
  const Status later = Sum(ranks[1].set.get(), "y", &b).get();
  CHECK(later.code() == StatusCode::kPeerLost);
  CHECK(Contains(later.message(), "rank 2 left the job: ValueError: boom"));
}

TEST_CASE("shared memory that cannot be opened says who must see whom") {
  ShmSegment segment;
  segment.pid = getpid();
  segment.fd = 1 << 20;  // no such file
  std::unique_ptr<HostGroup> group;
  const Status status =
      AttachSegment(segment, 0, {getpid(), getpid()}, /*epoch=*/0, &group);
  CHECK(status.code() == StatusCode::kInternal);
  CHECK(Contains(status.message(), "in one container and as one user"));
}

}  // namespace
}  // namespace hvd
