// If poll() refuses to wait, the watch over the ranks' processes goes on or
// says that it cannot. A process may have lowered its limit of open files below
// the number of ranks.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/common/futex.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void LimitFiles(rlim_t limit) {
  rlimit limits;
  CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
  limits.rlim_cur = limit;
  CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
}

void RaiseFiles() {
  rlimit limits;
  CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
  limits.rlim_cur = limits.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
}

template <typename Condition>
bool BecomesTrue(Condition condition, seconds patience = seconds(5)) {
  const Clock::time_point end = Clock::now() + patience;
  while (!condition() && Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return condition();
}

// Nobody may die before all have attached.
void Meet(HostSlabs* slabs) {
  slabs->Post(Flag::kIn, 1);
  REQUIRE_OK(slabs->WaitAll(Flag::kIn, 1));
}

// Ranks 1 and 2 end when rank 0 says so, by a chunk it posts.
void EndWhenTold(HostGroup* group) {
  const uint32_t told = static_cast<uint32_t>(group->rank());
  CHECK_OK(group->slabs()->Wait(0, Flag::kOut, told));
  EndChild();
}

void StayUntilGone(const Membership& membership,
                   const std::vector<int>& ranks) {
  for (int rank : ranks) {
    CHECK(BecomesTrue([&] { return membership.IsGone(rank); }, seconds(30)));
  }
}

// Rank 3 stays.
void WatchWithOneFile(std::unique_ptr<HostGroup> group) {
  Meet(group->slabs());
  const Membership& membership = *group->membership();
  if (group->rank() == 3) return StayUntilGone(membership, {0});
  if (group->rank() != 0) EndWhenTold(group.get());
  LimitFiles(1);
  group->slabs()->Post(Flag::kOut, 1);
  CHECK(BecomesTrue([&] { return membership.IsGone(1); }));
  group->slabs()->Post(Flag::kOut, 2);
  CHECK(BecomesTrue([&] { return membership.IsGone(2); }));
  CHECK(!membership.IsGone(3));
  RaiseFiles();
}

std::future<Outcome> Sum(Engine* engine) {
  return Submit(engine, ARequest(CollectiveKind::kAllreduce, "x"),
                {Fill(DataType::kFloat32, {4}, 1)});
}

// Makes poll() return in the watching thread, which alone takes the signal.
void InterruptPoll() {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  CHECK(kill(getpid(), SIGUSR1) == 0);
}

// A rank that cannot see deaths must not wait for others.
void WatchWithNoFile(std::unique_ptr<HostGroup> own) {
  const std::shared_ptr<HostGroup> group = std::move(own);
  Meet(group->slabs());
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  if (group->rank() == 1) return StayUntilGone(*group->membership(), {0, 2});
  const auto engine = Engine::Create(group, QuickOptions());
  std::future<Outcome> pending = Sum(engine.get());  // rank 1 does not come
  if (group->rank() == 0) {
    LimitFiles(0);
    InterruptPoll();
  }
  const Status status = pending.get().status;
  CHECK(status.code() ==
        (group->rank() == 0 ? StatusCode::kInternal : StatusCode::kPeerLost));
  CHECK(Contains(status.message(), "rank 0"));
  CHECK(Contains(status.message(), "can no longer see"));
  CHECK(Contains(status.message(), "poll"));
}

// Puts what cannot be written to in place of what wakes the thread.
void ReplaceEventfds() {
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(null >= 0);
  int num_replaced = 0;
  for (int fd = 0; fd < 256; ++fd) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), name, sizeof(name) - 1) < 0) continue;
    if (std::string(name) != "anon_inode:[eventfd]") continue;
    CHECK(dup2(null, fd) == fd);
    ++num_replaced;
  }
  CHECK(num_replaced > 0);
}

void EndWithoutWriting(std::unique_ptr<HostGroup> group) {
  Meet(group->slabs());
  ReplaceEventfds();
  const Clock::time_point begin = Clock::now();
  group.reset();
  CHECK(Clock::now() - begin < seconds(20));
}

// UBSan, which we build together with ASan, looks at memory through a pipe. A
// process without free descriptors cannot open one.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSkip = true;
#else
constexpr bool kSkip = false;
#endif

TEST_CASE("the watch goes on with few descriptors at a time" *
          doctest::skip(kSkip)) {
  CheckAllExitedWell(RunProcesses(4, WatchWithOneFile));
}
TEST_CASE("the watch ends although nothing wakes its thread") {
  CheckAllExitedWell(RunProcesses(2, EndWithoutWriting));
}
TEST_CASE("a rank that cannot watch gives up and says so" *
          doctest::skip(kSkip)) {
  CheckAllExitedWell(RunProcesses(3, WatchWithNoFile));
}

}  // namespace
}  // namespace hvd
