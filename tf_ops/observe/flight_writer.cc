#include "tf_ops/observe/flight_writer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

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

const std::shared_ptr<FlightRecorder>& Recorder() {
  static const auto* const recorder = new std::shared_ptr<FlightRecorder>(
      std::make_shared<FlightRecorder>(&NoteFailure));
  return *recorder;
}

void Serve() {
  (void)prctl(PR_SET_NAME, "hvd_flight");
  uint64_t why = 0;
  while (read(wakeup.load(), &why, sizeof(why)) == sizeof(why)) {
    const bool is_asked = why >= kSignal;
    if (!is_asked) std::this_thread::sleep_for(kAfterFailure);
    const Status status =
        WriteFlightRecord("", is_asked ? "SIGUSR2" : "a request has failed");
    if (!status.ok()) {
      std::fprintf(stderr, "[hvd_keras] warning: %s\n",
                   status.message().c_str());
    }
    if (!is_asked) std::this_thread::sleep_for(kBetweenFailures);
  }
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
    struct sigaction action{};
    action.sa_handler = &OnSignal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, nullptr);
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
