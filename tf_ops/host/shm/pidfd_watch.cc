#include "tf_ops/host/shm/pidfd_watch.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "tf_ops/host/shm/system_error.h"

namespace hvd {
namespace {

// How often to look if poll() cannot wait for all processes at once.
constexpr std::chrono::milliseconds kLookInterval{20};

// How long to sleep at most, should nothing wake the thread at its end.
constexpr int kMostMilliseconds = 1000;

// MPI may end the wire because that of another host is gone. The leaders will
// have told each other by then.
constexpr std::chrono::milliseconds kPatience{400};

// Sets each `revents`, without waiting. False, and errno, if that fails too.
bool PollEach(std::vector<pollfd>* polled) {
  for (pollfd& one : *polled) {
    if (poll(&one, 1, 0) < 0 && errno != EINTR) return false;
  }
  return true;
}

// "SIGKILL". glibc has such a function from 2.32 on.
std::string NameOfSignal(int number) {
  static constexpr std::pair<int, const char*> kNames[] = {
      {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},
      {SIGFPE, "SIGFPE"},   {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},
      {SIGINT, "SIGINT"},   {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"},
      {SIGQUIT, "SIGQUIT"}, {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},
      {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"},
      {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}};
  for (const auto& [known, name] : kNames) {
    if (known == number) return name;
  }
  return "signal " + std::to_string(number);
}

// "SIGKILL", "status 1"; "" if nobody knows any more. Its parent knows for as
// long as it has not waited for it.
std::string HowItEnded(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t begin = text.rfind(' ');  // the last number is the status
  if (begin == std::string::npos) return "";
  const int status = std::atoi(text.c_str() + begin);
  if (status == 0) return "";
  if (WIFEXITED(status)) {
    return "status " + std::to_string(WEXITSTATUS(status));
  }
  return NameOfSignal(WTERMSIG(status));
}

}  // namespace

Status PidfdWatch::Start(const std::vector<pid_t>& pids, Membership* membership,
                         std::unique_ptr<DeathWatch>* watch) {
  std::unique_ptr<PidfdWatch> made(new PidfdWatch(membership));
  HVD_RETURN_IF_ERROR(made->Open(pids));
  made->thread_ = std::thread([self = made.get()] { self->Watch(); });
  *watch = std::move(made);
  return Status::Ok();
}

PidfdWatch::~PidfdWatch() {
  if (!thread_.joinable()) return;
  must_end_ = true;
  const uint64_t one = 1;
  // If it fails, the thread looks soon without it.
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

Status PidfdWatch::Open(const std::vector<pid_t>& pids) {
  pids_ = pids;
  pidfds_.resize(pids.size());
  for (size_t peer = 0; peer < pids.size(); ++peer) {
    const int rank = static_cast<int>(peer);
    membership_->members().SetPid(rank, pids[peer]);
    if (rank == membership_->members().rank()) continue;
    const std::string who = membership_->members().label(rank);
    pidfds_[peer] =
        Fd(static_cast<int>(syscall(SYS_pidfd_open, pids[peer], 0)));
    if (pidfds_[peer].is_open()) continue;
    if (errno == ESRCH) return Status::PeerLost(who + " died during init");
    return SystemError("pidfd_open of " + who);
  }
  stop_ = Fd(eventfd(0, EFD_CLOEXEC));
  return stop_.is_open() ? Status::Ok() : SystemError("eventfd");
}

void PidfdWatch::Watch() {
  for (const Fd& fd : pidfds_) polled_.push_back(pollfd{fd.get(), POLLIN, 0});
  polled_.push_back(pollfd{stop_.get(), POLLIN, 0});
  while (!must_stop()) {
    if (poll(polled_.data(), polled_.size(), MillisecondsLeft()) < 0) {
      if (errno == EINTR) continue;
      // The limit of open files may be below the number of ranks, or memory
      // may be short: poll them one at a time.
      if (!PollEach(&polled_)) {
        membership_->MarkBlind(SystemError("poll").message());
        return;
      }
      std::this_thread::sleep_for(kLookInterval);
    }
    MarkDeadOnes();
    if (wire_due_.has_value() && Clock::now() >= *wire_due_) {
      wire_due_.reset();
      membership_->MarkDead(membership_->members().size(), how_wire_ended_);
    }
  }
}

int PidfdWatch::MillisecondsLeft() const {
  if (!wire_due_.has_value()) return kMostMilliseconds;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      *wire_due_ - Clock::now());
  return static_cast<int>(
      std::clamp<int64_t>(left.count() + 1, 0, kMostMilliseconds));
}

void PidfdWatch::Note(int member) {
  if (member < membership_->members().size()) {
    return membership_->MarkDead(member);
  }
  how_wire_ended_ = HowItEnded(pids_[static_cast<size_t>(member)]);
  if (how_wire_ended_ == "SIGKILL") {
    membership_->MarkDead(member, how_wire_ended_);
  } else {
    wire_due_ = Clock::now() + kPatience;
  }
}

void PidfdWatch::MarkDeadOnes() {
  for (size_t peer = 0; peer < pidfds_.size(); ++peer) {
    if (polled_[peer].fd < 0 || polled_[peer].revents == 0) continue;
    Note(static_cast<int>(peer));
    polled_[peer].fd = -1;
  }
}

}  // namespace hvd
