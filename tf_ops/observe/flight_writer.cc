#include "tf_ops/observe/flight_writer.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/common/threads.h"

namespace hvd {
namespace {

constexpr uint64_t kFailure = 1;
constexpr uint64_t kSignal = uint64_t{1} << 32;
// When one request fails, others do soon.
constexpr std::chrono::milliseconds kAfterFailure{20};
constexpr std::chrono::seconds kBetweenFailures{1};

// Never destroyed: engines may tell their last events while the process ends.
struct Writer {
  Mutex mu;
  FlightHeader header GUARDED_BY(mu);
  std::string path GUARDED_BY(mu);
  bool has_thread GUARDED_BY(mu) = false;
};

Writer& TheWriter() {
  static Writer* const writer = new Writer();
  return *writer;
}

std::atomic<uint64_t> position{0};  // the epoch, then the batch in 32 bits

// What the thread waits for; -1: there is none. A signal handler reads it.
std::atomic<int> wakeup{-1};

void Wake(uint64_t why) {
  const int saved = errno;
  const int fd = wakeup.load();
  if (fd >= 0) (void)!write(fd, &why, sizeof(why));
  errno = saved;
}

void NoteFailure() { Wake(kFailure); }
void OnSignal(int) { Wake(kSignal); }

// Who writes Python's stacks: its own thread, which is asked through this
// socket, or, if that is silent, the handler that `faulthandler` has set.
std::atomic<int> stack_requests{-1};
std::atomic<void (*)(int)> stack_fallback{nullptr};
// A process that holds the GIL for longer moves no frame that the other reads.
constexpr std::chrono::milliseconds kStackPatience{400};

void OnSignalForStacks(int number) {
  void (*const write)(int) = stack_fallback.load();
  if (wakeup.load() >= 0) {
    Wake(kSignal);
  } else if (write != nullptr) {
    write(number);  // a child, which has no threads of ours
  }
}

// When Python ends, `faulthandler` puts back what it has found.
bool CanWriteStacks() {
  struct sigaction found{};
  return sigaction(SIGUSR2, nullptr, &found) == 0 &&
         found.sa_handler == &OnSignalForStacks;
}

bool HasAnswered(int fd, std::chrono::milliseconds patience) {
  pollfd answer{fd, POLLIN, 0};
  char byte = 0;
  return poll(&answer, 1, static_cast<int>(patience.count())) > 0 &&
         recv(fd, &byte, 1, MSG_DONTWAIT) == 1;
}

// For the one thread.
void WriteStacks() {
  static bool owes_answer = false;
  if (!CanWriteStacks()) return;
  const int fd = stack_requests.load();
  if (owes_answer) {
    owes_answer = !HasAnswered(fd, std::chrono::milliseconds(0));
  }
  if (!owes_answer) {
    const char request = 1;
    if (send(fd, &request, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
      if (HasAnswered(fd, kStackPatience)) return;
      owes_answer = true;
    }
  }
  if (CanWriteStacks()) stack_fallback.load()(SIGUSR2);
}

const std::shared_ptr<FlightRecorder>& Recorder() {
  static const auto* const recorder = new std::shared_ptr<FlightRecorder>(
      std::make_shared<FlightRecorder>(&NoteFailure));
  return *recorder;
}

void Write(const char* reason) {
  const Status status = WriteFlightRecord("", reason);
  if (!status.ok()) {
    std::fprintf(stderr, "[hvd_keras] warning: %s\n", status.message().c_str());
  }
}

// Waits until somebody wakes this thread, or `due`, and says why. False: nobody
// can any more, because the program has closed what it waits for.
bool WaitForWakeup(bool is_due, Clock::time_point due, uint64_t* why) {
  int wait = -1;
  if (is_due) {
    const auto rest = std::max(due - Clock::now(), Clock::duration(0));
    wait = static_cast<int>(
        std::chrono::ceil<std::chrono::milliseconds>(rest).count());
  }
  pollfd request{wakeup.load(), POLLIN, 0};
  *why = 0;
  if (poll(&request, 1, wait) <= 0) return true;
  return read(request.fd, why, sizeof(*why)) == sizeof(*why);
}

void Serve() {
  (void)prctl(PR_SET_NAME, "hvd_flight");
  bool has_failed = false;  // and no record tells of it yet
  Clock::time_point due;    // when one does
  Clock::time_point last = Clock::now() - kBetweenFailures;
  uint64_t why = 0;
  while (WaitForWakeup(has_failed, due, &why)) {
    if (why % kSignal != 0 && !has_failed) {
      has_failed = true;
      due = std::max(Clock::now() + kAfterFailure, last + kBetweenFailures);
    }
    if (why >= kSignal) {
      Write("SIGUSR2");  // first: a process that ends has no time for stacks
      WriteStacks();
      has_failed = false;
    } else if (has_failed && Clock::now() >= due) {
      Write("a request has failed");
      has_failed = false;
      last = Clock::now();
    }
  }
}

void Handle(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

// The threads and the handler of a child are not ours.
void AfterForkInChild() { wakeup.store(-1); }

Status StartThread() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) {
    return Status::Internal(std::string("eventfd: ") + std::strerror(errno));
  }
  wakeup.store(fd);
  pthread_atfork(nullptr, nullptr, &AfterForkInChild);
  ThreadWithoutSignals(&Serve).detach();
  struct sigaction found{};
  if (sigaction(SIGUSR2, nullptr, &found) == 0 &&
      found.sa_handler == SIG_DFL) {  // the user has no other plan
    Handle(&OnSignal);
  }
  return Status::Ok();
}

}  // namespace

std::shared_ptr<EventObserver> TheFlightRecorder() { return Recorder(); }

Status SetFlightFile(const FlightHeader& header, const std::string& path) {
  Writer& writer = TheWriter();
  const MutexLock lock(&writer.mu);
  writer.header = header;
  writer.path = path;
  if (path.empty() || writer.has_thread) return Status::Ok();
  HVD_RETURN_IF_ERROR(StartThread());
  writer.has_thread = true;
  return Status::Ok();
}

void SetStackWriter(int requests) {
  struct sigaction found{};
  if (sigaction(SIGUSR2, nullptr, &found) != 0) return;
  stack_requests.store(requests);
  if (found.sa_handler == &OnSignalForStacks) return;
  stack_fallback.store(found.sa_handler);
  Handle(&OnSignalForStacks);
}

void SetFlightPosition(uint32_t epoch, uint32_t batch) {
  position.store(uint64_t{epoch} << 32 | batch, std::memory_order_relaxed);
}

Status WriteFlightRecord(const std::string& path, const std::string& reason) {
  Writer& writer = TheWriter();
  const MutexLock lock(&writer.mu);  // one file at a time
  FlightHeader header = writer.header;
  header.reason = reason;
  header.num_steps = Recorder()->num_steps();
  const uint64_t at = position.load(std::memory_order_relaxed);
  header.epoch = static_cast<uint32_t>(at >> 32);
  header.batch = static_cast<uint32_t>(at);
  const std::string& target = path.empty() ? writer.path : path;
  if (target.empty()) return Status::Ok();
  return WriteFlightFile(target, header, Recorder()->Records());
}

}  // namespace hvd
