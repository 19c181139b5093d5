// The main program of each C++ test, which ends a test that hangs.
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <mutex>
#include <thread>

// Sanitizers have handlers of their own.
#if HVD_SANITIZED
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#endif
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/cc/test_util.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

// ---- The deadline ----

#if HVD_SANITIZED
constexpr int kDeadlineSeconds = 240;  // less than ctest's
#else
constexpr int kDeadlineSeconds = 120;
#endif
constexpr int kStackSignal = SIGUSR2;

Clock::time_point deadline;
char test_name[200];
std::atomic<int> num_stacks{0};

void WriteText(const char* text) {
  (void)!write(STDERR_FILENO, text, std::strlen(text));
}

void PrintOwnStack(int) {
  char title[40];
  std::snprintf(title, sizeof(title), "Thread %ld:\n", syscall(SYS_gettid));
  WriteText(title);
  void* frames[50];
  backtrace_symbols_fd(frames, backtrace(frames, 50), STDERR_FILENO);
  num_stacks.fetch_add(1);
}

// One after the other. A thread that does not take the signal is left out.
void PrintAllStacks() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return;
  while (const dirent* const entry = readdir(threads)) {
    const long id = std::atol(entry->d_name);
    if (id == 0) continue;
    const int num_before = num_stacks.load();
    syscall(SYS_tgkill, getpid(), id, kStackSignal);
    for (int i = 0; i < 100 && num_stacks.load() == num_before; ++i) {
      usleep(10000);
    }
  }
}

void OnDeadline(int) {
  char line[300];
  std::snprintf(line, sizeof(line), "\n\"%s\" has not ended in time (pid %d)\n",
                test_name, static_cast<int>(getpid()));
  WriteText(line);
  PrintAllStacks();
  std::abort();
}

// HVD_TEST_DEADLINE: seconds a test may take, 0 for ever.
int DeadlineSeconds() {
  const char* const text = std::getenv("HVD_TEST_DEADLINE");
  return text == nullptr ? kDeadlineSeconds : std::atoi(text);
}

void HandleSignals() {
  void* frame;
  backtrace(&frame, 1);  // loads what a handler must not load
  struct sigaction action{};
  action.sa_handler = PrintOwnStack;
  action.sa_flags = SA_RESTART;
  sigaction(kStackSignal, &action, nullptr);
  action.sa_handler = OnDeadline;
  sigaction(SIGALRM, &action, nullptr);
}

// A child inherits no alarm. It ends before its parent, which waits for it.
void SetDeadlineOfChild() {
  if (DeadlineSeconds() <= 0) return;
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(
      deadline - Clock::now() - std::chrono::seconds(5));
  alarm(static_cast<unsigned>(std::max<int64_t>(left.count(), 1)));
}

// ---- What is told of each test ----

std::atomic<int> num_failures{0};

// Sets the deadline of each test, and counts failures, also those of threads.
class Watch : public doctest::IReporter {
 public:
  explicit Watch(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& data) override {
    std::snprintf(test_name, sizeof(test_name), "%s", data.m_name);
    const int seconds = DeadlineSeconds();
    deadline = Clock::now() + std::chrono::seconds(seconds);
    alarm(static_cast<unsigned>(seconds));
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    alarm(0);
  }
  void log_assert(const doctest::AssertData& data) override {
    if (data.m_failed) num_failures.fetch_add(1);
  }
  void log_message(const doctest::MessageData& data) override {
    if (data.m_severity != doctest::assertType::is_warn) {
      num_failures.fetch_add(1);
    }
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("watch", 1, Watch);

void ReportException(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const doctest::detail::TestFailureException&) {  // has been reported
  } catch (const std::exception& e) {
    ADD_FAIL_CHECK_AT(__FILE__, __LINE__,
                      "an exception: " << std::string(e.what()));
  } catch (...) {
    ADD_FAIL_CHECK_AT(__FILE__, __LINE__, "an exception of unknown type");
  }
}

}  // namespace

void RunOnThreads(int size, const std::function<void(int)>& body,
                  const std::function<void(int)>& abandon) {
  std::mutex mu;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      INFO("rank ", rank, " of ", size);
      try {
        body(rank);
      } catch (...) {
        ReportException(std::current_exception());
        std::lock_guard<std::mutex> lock(mu);
        if (first == nullptr) first = std::current_exception();
        abandon(rank);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // It has been reported.
  if (first != nullptr) throw doctest::detail::TestFailureException();
}

std::vector<int> RunProcesses(int size, const RankBody& body) {
  std::cout.flush();
  return ForkRanks(size, [&](std::unique_ptr<HostGroup> group) {
    SetDeadlineOfChild();
    num_failures = 0;
    const int rank = group->rank();
    INFO("rank ", rank, " of ", size);
    try {
      body(std::move(group));
    } catch (...) {
      ReportException(std::current_exception());
    }
    EndChild();
  });
}

void EndChild() {
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(num_failures.load() == 0 ? 0 : 1);
}

}  // namespace hvd

int main(int argc, char** argv) {
  hvd::HandleSignals();
  return doctest::Context(argc, argv).run();
}
